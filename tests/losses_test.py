"""Losses against loops in float64, and their gradients against finite differences of these loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_loss_same_on_any_mesh

from retrieval.common.errors import UserError
from retrieval.training.candidates import inner_products
from retrieval.training.losses import free_bits, token_cross_entropy
from retrieval.training.objectives.own_negatives import MultiNegativeNLL, Triplet, TwoWayNLL

OWN_NEGATIVES = {"triplet": Triplet, "two_way_nll": TwoWayNLL, "multi_negative_nll": MultiNegativeNLL}


def batch(B=8, K=1, E=5, seed=0, documents=6):
    """Few document ids, so that copies are in other rows, in other columns, and beside their own positive."""
    random = np.random.default_rng(seed)
    query, document = random.normal(size=(B, E)), random.normal(size=(B, K, E))
    return tuple(
        np.asarray(x, dtype)
        for x, dtype in (
            (query, np.float32),
            (document, np.float32),
            (random.integers(0, documents, (B, K)), np.int32),
            (random.normal(size=(B, K)), np.float32),
        )
    )


def test_options_are_checked_by_their_declarations():
    with pytest.raises(UserError, match=r"config\.train\.temperature=nan: a number above 0 .* is needed"):
        TwoWayNLL(temperature=math.nan)


def mlm_batch():
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(8, 3, 7)).astype(np.float32), random.integers(0, 7, (8, 3)).astype(np.int32)
    labels[:4] = logits[:4].argmax(axis=-1)
    weights = (np.arange(3) < np.array([3, 1, 0, 2, 3, 3, 1, 2])[:, None]).astype(np.float32)
    return logits, labels, weights


def test_the_mlm_loss_is_the_mean_over_masked_tokens():
    logits, labels, weights = mlm_batch()
    losses, hits = [], []
    for b, p in np.argwhere(weights):
        exponentials = np.exp(logits[b, p].astype(np.float64))
        losses.append(-math.log(exponentials[labels[b, p]] / exponentials.sum()))
        hits.append(logits[b, p].argmax() == labels[b, p])
    loss, metrics = token_cross_entropy(logits, labels, weights)
    assert loss.shape == metrics["accuracy"].shape == (8,)
    assert loss.mean() == pytest.approx(np.mean(losses), rel=1e-6)
    assert metrics["accuracy"].mean() == pytest.approx(np.mean(hits), rel=1e-6)
    assert loss[2] == 0
    assert loss[1] == pytest.approx(losses[3] * 8 / 15, rel=1e-6)


def of_own_negatives(name, query, document, ids, **options):
    """A loss of an example's own documents, of their inner products."""
    return OWN_NEGATIVES[name](**options)(inner_products(query, document), {"document_id": ids})


def own_negatives_by_loops(name, query, document, ids, temperature, margin=1.0):
    """Losses [B] and recall@1 [B] of a loss of an example's own documents, one score at a time.

    They are torch's MarginRankingLoss(margin)(positive, negative, 1) for triplet, and CrossEntropyLoss with label 0
    over [positive, negative] for two_way_nll, over [positive, *negatives] for multi_negative_nll.
    """
    losses, hits = [], []
    for q, own, own_ids in zip(query, document, ids):
        positive, *others = (float(q @ d) / temperature for d in own)
        negatives = [score for score, id in zip(others, own_ids[1:]) if id != own_ids[0]]
        if name == "triplet":
            terms = [max(0.0, margin - positive + score) for score in negatives]
        elif name == "two_way_nll":
            terms = [-math.log(math.exp(positive) / (math.exp(positive) + math.exp(score))) for score in negatives]
        else:
            terms = [-math.log(math.exp(positive) / (math.exp(positive) + sum(map(math.exp, negatives))))]
        losses.append(sum(terms) / len(terms) if terms else 0.0)
        hits.append(all(positive > score for score in negatives))
    return np.array(losses), np.array(hits, np.float32)


@pytest.mark.parametrize("name", OWN_NEGATIVES)
def test_losses_of_own_negatives_are_those_of_the_loops(name):
    query, document, ids, _ = batch(B=16, K=4, documents=4)
    assert (ids[:, 1:] == ids[:, :1]).any(axis=1).any()  # copies of the positive among its negatives
    options = {"temperature": 0.7} | ({"margin": 2.0} if name == "triplet" else {})
    loss, metrics = of_own_negatives(name, query, document, ids, **options)
    expected, hits = own_negatives_by_loops(name, query, document, ids, **options)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(metrics["recall@1"], hits)
    assert 0 < hits.mean() < 1


def test_own_negatives_losses_are_the_same_on_any_mesh():
    """All in one program."""

    def loss(scale, batch):
        query, document, ids, _ = batch
        found = [of_own_negatives(name, query * scale, document, ids) for name in OWN_NEGATIVES]
        return sum(values.mean() for values, _ in found), found

    assert_loss_same_on_any_mesh(loss, jnp.linspace(0.5, 1.5, 5), batch(B=16, K=3, documents=12))


def test_own_negatives_are_needed():
    with pytest.raises(UserError, match="a loss of hard negatives, but an example has 1 document"):
        of_own_negatives("triplet", *batch(K=1)[:3])


def test_free_bits_are_free_in_every_dimension():
    divergence = jnp.array([[0.1, 0.5, 2.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(free_bits(divergence, 0.3), [0.3 + 0.5 + 2.0, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(jax.grad(lambda x: free_bits(x, 0.3).sum())(divergence), [[0, 1, 1], [0, 0, 0]])
