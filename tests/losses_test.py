"""Losses against loops in float64, and their gradients against finite differences of these loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.training.candidates import inner_products
from retrieval.training.losses import free_bits, token_cross_entropy
from retrieval.training.objectives.embedding_distillation import EmbeddingCosine, EmbeddingMSE
from retrieval.training.objectives.listwise import LambdaLoss, ListMLE, RankNet
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
    loss, metrics = jax.jit(token_cross_entropy)(logits, labels, weights)
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
    loss, metrics = jax.jit(lambda *given: of_own_negatives(name, *given, **options))(query, document, ids)
    expected, hits = own_negatives_by_loops(name, query, document, ids, **options)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(metrics["recall@1"], hits)
    assert 0 < hits.mean() < 1


def listwise_by_loops(name, scores, grades):
    """Of one query's documents that count."""
    documents = range(len(scores))
    if name == "list_mle":
        order = sorted(documents, key=lambda document: -grades[document])
        ranked = [scores[document] for document in order]
        return sum(math.log(sum(map(math.exp, ranked[r:]))) - ranked[r] for r in documents)
    rank = {document: r for r, document in enumerate(sorted(documents, key=lambda d: -scores[d]), start=1)}
    ideal = sum((2**grade - 1) / math.log2(1 + r) for r, grade in enumerate(sorted(grades, reverse=True), start=1))
    terms = []
    for i, j in [(i, j) for i in documents for j in documents if grades[i] > grades[j]]:
        loss, weight = math.log(1 + math.exp(scores[j] - scores[i])), 1.0
        if name == "lambda_loss":
            apart = abs(rank[i] - rank[j])
            step = 1 / math.log2(1 + apart) - 1 / math.log2(2 + apart)
            discounts = abs(1 / math.log2(1 + rank[i]) - 1 / math.log2(1 + rank[j]))
            weight = (2 ** grades[i] - 2 ** grades[j]) / ideal * (10 * step + discounts) / math.log(2)
        terms.append(weight * loss)
    return sum(terms) / len(terms) if terms else 0.0


@pytest.mark.parametrize(("name", "loss"), [("ranknet", RankNet), ("list_mle", ListMLE), ("lambda_loss", LambdaLoss)])
def test_listwise_losses_are_those_of_the_loops(name, loss):
    query, document, ids, _ = batch(B=16, K=5, documents=8)
    grades = np.random.default_rng(1).integers(0, 4, ids.shape).astype(np.float32)
    grades[0] = 1.0  # no two differ
    scores = np.asarray(inner_products(query, document))
    assert (ids[:, 1:] == ids[:, :1]).any()  # copies of the positive, which count in no loss
    values, _ = jax.jit(loss(temperature=0.7))(scores, {"document_id": ids, "teacher": grades})
    counted = [np.append(True, own[1:] != own[0]) for own in ids]
    expected = [listwise_by_loops(name, s[c] / 0.7, g[c]) for s, g, c in zip(scores.astype(float), grades, counted)]
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    gradient = jax.jit(jax.grad(lambda s: loss()(s, {"document_id": ids, "teacher": grades})[0].mean()))(scores)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", ["mse", "cosine"])
def test_a_teachers_embeddings_of_the_query_are_learned_by_both_texts(name):
    query, document, _, _ = batch(B=4, K=2)
    guide = np.random.default_rng(1).normal(size=(4, 3, 5))
    loss = {"mse": EmbeddingMSE, "cosine": EmbeddingCosine}[name](guide="teacher")
    values, metrics = loss(query, document, {"guide": guide})
    pairs = [(text, target) for q, d, (target, *_) in zip(query, document, guide) for text in (q, d[0])]
    cosines = [x @ t / math.sqrt((x @ x) * (t @ t)) for x, t in pairs]
    of_texts = [1 - c for c in cosines] if name == "cosine" else [np.square(x - t).mean() for x, t in pairs]
    np.testing.assert_allclose(values, np.reshape(of_texts, (4, 2)).mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(metrics["cosine"], np.reshape(cosines, (4, 2)).mean(axis=1), rtol=1e-5)
    with pytest.raises(UserError, match=r"gives 4 numbers, the model 5: set config\.model\.embed_dim=4"):
        loss(query, document, {"guide": guide[:, :, :4]})
    with pytest.raises(UserError, match=r"config\.train\.guide names no model"):
        type(loss)().check_batch(4, 0)


def test_own_negatives_are_needed():
    with pytest.raises(UserError, match="a loss of hard negatives, but an example has 1 document"):
        of_own_negatives("triplet", *batch(K=1)[:3])


def test_free_bits_are_free_in_every_dimension():
    divergence = jnp.array([[0.1, 0.5, 2.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(free_bits(divergence, 0.3), [0.3 + 0.5 + 2.0, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(jax.grad(lambda x: free_bits(x, 0.3).sum())(divergence), [[0, 1, 1], [0, 0, 0]])
