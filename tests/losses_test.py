"""Losses against loops in float64, and their gradients against finite differences of these loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_loss_same_on_any_mesh
from support.losses import in_batch_softmax as uncompiled
from support.modules import assert_finite_differences

from retrieval.errors import UserError
from retrieval.training.candidates import inner_products
from retrieval.training.losses import free_bits, token_cross_entropy
from retrieval.training.objectives.own_negatives import MultiNegativeNLL, Triplet, TwoWayNLL

# One program in place of one for each operation, which takes a multiple of the time.
in_batch_softmax = jax.jit(
    uncompiled, static_argnames=("temperature", "symmetric", "other_positives", "groups", "block")
)
OWN_NEGATIVES = {"triplet": Triplet, "two_way_nll": TwoWayNLL, "multi_negative_nll": MultiNegativeNLL}


def softmax_over_positives(query, document, ids, log_q, known, temperature, symmetric, other_positives):
    """Losses [B] and recall@1 [B] of in-batch softmax, in float64, one logit at a time.

    `known` has the ids of the positives of each query, [B, P].
    """
    B, K, _ = document.shape
    known = [{int(ids[b, 0]), *known[b].tolist()} for b in range(B)]

    def loss_of(logits, positives, own):
        others = [logit for place, logit in logits.items() if place not in positives]
        counted = [own] if other_positives == "mask" else positives
        return np.mean([math.log(sum(map(math.exp, [logits[p], *others]))) - logits[p] for p in counted])

    losses, hits = [], []
    for b in range(B):
        places = [(r, k) for r in range(B) for k in range(K)]
        scores = {(r, k): float(query[b] @ document[r, k]) for r, k in places}
        logits = {(r, k): scores[r, k] / temperature - (0 if log_q is None else float(log_q[r, k])) for r, k in places}
        positives = [(r, k) for r, k in places if int(ids[r, k]) in known[b]]
        loss = loss_of(logits, positives, (b, 0))
        if symmetric:
            logits = {r: float(query[r] @ document[b, 0]) / temperature for r in range(B)}
            loss = (loss + loss_of(logits, [r for r in range(B) if int(ids[b, 0]) in known[r]], b)) / 2
        losses.append(loss)
        hits.append(all(scores[b, 0] > scores[place] for place in places if place not in positives))
    return np.array(losses), np.array(hits, np.float32)


def known_positives(ids, P=3, seed=1):
    """Of each row the own positive, that of another row, and a document that may be nowhere, in any order."""
    random = np.random.default_rng(seed)
    known = np.stack([ids[:, 0], random.permutation(ids[:, 0]), random.integers(0, 40, len(ids))], axis=1)
    return random.permuted(np.concatenate([known] + [ids[:, :1]] * (P - 3), axis=1), axis=1).astype(np.int32)


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


@pytest.mark.parametrize(("K", "corrected", "symmetric"), [(1, False, True), (3, True, False), (3, False, True)])
def test_in_batch_softmax_is_that_of_the_loops(K, corrected, symmetric):
    """Where a query's only known positive is its own, of which there are copies; in half precision, too."""
    query, document, ids, log_q = batch(K=K)
    log_q, options = log_q if corrected else None, dict(temperature=0.3, symmetric=symmetric)
    for dtype in (jnp.float32, jnp.bfloat16):
        given = [jnp.asarray(x, dtype) for x in (query, document)]
        loss, metrics = in_batch_softmax(*given, ids, log_q, **options)
        wide = (np.asarray(x, np.float64) for x in given)
        expected, hits = softmax_over_positives(*wide, ids, log_q, ids[:, :1], **options, other_positives="mask")
        assert loss.dtype == jnp.float32
        np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(metrics["recall@1"], hits)
        assert 0 < hits.mean() < 1
    np.testing.assert_array_equal(in_batch_softmax(0 * query, document, ids, log_q)[1]["recall@1"], 0)  # ties


@pytest.mark.parametrize("other_positives", ["mask", "mean"])
@pytest.mark.parametrize(("K", "symmetric"), [(1, True), (3, False)])
def test_no_positive_of_a_query_is_its_negative(K, symmetric, other_positives):
    query, document, ids, log_q = batch(B=12, K=K, documents=20)
    known = known_positives(ids, P=5)
    options = dict(temperature=0.7, symmetric=symmetric, other_positives=other_positives)
    loss, metrics = in_batch_softmax(query, document, ids, log_q, known=known, **options)
    expected, hits = softmax_over_positives(query, document, ids, log_q, known, **options)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(metrics["recall@1"], hits)
    before, _ = in_batch_softmax(query, document, ids, log_q, temperature=0.7, symmetric=symmetric)
    assert (np.abs(loss - before) > 1e-3).sum() >= 6  # of 12 rows


@pytest.mark.parametrize("other_positives", ["mask", "mean"])
def test_blocks_change_nothing(other_positives):
    """24 documents in blocks that do not divide them, and in one block."""
    query, document, ids, log_q = batch(K=3)
    options = dict(temperature=0.3, symmetric=True, other_positives=other_positives, known=known_positives(ids))

    def loss(query, document, block):
        losses, metrics = in_batch_softmax(query, document, ids, log_q, block=block, **options)
        return (losses * np.arange(1, 9)).sum(), metrics["recall@1"]

    gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    expected = jax.tree.leaves(gradient(query, document, 24))
    for block in (5, 100):
        for a, b in zip(jax.tree.leaves(gradient(query, document, block)), expected):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=f"blocks of {block}")


def test_no_matrix_of_all_scores_is_held():
    """1,024 x 1,024 scores would take 4 MB; a block of 32 takes 0.1, and there are a few of that size."""
    query, document, ids, log_q = batch(B=1024, documents=1000)

    def loss(query, document):
        return in_batch_softmax(query, document, ids, log_q, block=32)[0].mean()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(query, document).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1.5e6


@pytest.mark.parametrize(("symmetric", "other_positives"), [(True, "mask"), (False, "mean")])
def test_gradients_are_finite_differences_of_the_loops(symmetric, other_positives):
    query, document, ids, log_q = batch(B=4, K=2, E=3, documents=6)
    known = known_positives(ids)
    options = dict(temperature=0.7, symmetric=symmetric, other_positives=other_positives)
    loss = lambda q, d: in_batch_softmax(q, d, ids, log_q, known=known, **options)[0].sum()  # noqa: E731
    grads = jax.grad(loss, (0, 1))(query, document)
    by_loops = lambda q, d: softmax_over_positives(q, d, ids, log_q, known, **options)[0].sum()  # noqa: E731
    assert_finite_differences(grads, (query, document), by_loops, 1e-5)


@pytest.mark.parametrize(
    ("K", "symmetric", "other_positives"),
    [(3, True, "mask"), (1, False, "mean")],
)
def test_in_batch_softmax_is_the_same_on_any_mesh(K, symmetric, other_positives):
    query, document, ids, log_q = batch(B=16, K=K, documents=12)

    def loss(scale, batch):
        query, document, ids, log_q, known = batch
        options = dict(symmetric=symmetric, known=known, other_positives=other_positives)
        values, metrics = in_batch_softmax(query * scale, document, ids, log_q, **options)
        return values.mean(), (values, metrics)

    given = (query, document, ids, log_q, known_positives(ids))
    assert_loss_same_on_any_mesh(loss, jnp.linspace(0.5, 1.5, 5), given)


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


def test_a_smoothed_label_is_spread_over_the_vocabulary():
    """Cross-entropy with the label's share 0.8 + 0.2 / 7 and 0.2 / 7 for every other token."""
    logits, labels, weights = mlm_batch()
    target = 0.8 * np.eye(7)[labels] + 0.2 / 7
    log_softmax = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=-1, keepdims=True))
    expected = (weights * -(target * log_softmax).sum(axis=-1)).sum() / weights.sum()
    loss, grad = jax.value_and_grad(lambda x: token_cross_entropy(x, labels, weights, smoothing=0.2)[0].mean())(logits)
    assert loss == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(grad, (np.exp(log_softmax) - target) * weights[:, :, None] / 15, atol=1e-6)


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
