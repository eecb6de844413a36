"""Losses against loops in float64, and their gradients against finite differences of these loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_loss_same_on_any_mesh, assert_same_on_any_mesh
from support.modules import assert_finite_differences

from retrieval.errors import UserError
from retrieval.training.candidates import inner_products
from retrieval.training.losses import free_bits, token_cross_entropy
from retrieval.training.objectives.in_batch_softmax import OTHER_POSITIVES
from retrieval.training.objectives.in_batch_softmax import in_batch_softmax as uncompiled
from retrieval.training.objectives.margins import triplet
from retrieval.training.objectives.own_negatives import multi_negative_nll, two_way_nll

# One program in place of one for each operation, which takes a multiple of the time.
in_batch_softmax = jax.jit(
    uncompiled, static_argnames=("temperature", "symmetric", "other_positives", "groups", "block")
)
OWN_NEGATIVES = {"triplet": triplet, "two_way_nll": two_way_nll, "multi_negative_nll": multi_negative_nll}


def softmax_by_loops(query, document, ids, log_q, temperature, symmetric):
    """Losses [B] and recall@1 [B] of in-batch softmax, one score at a time."""
    B, K, _ = document.shape
    log_q = np.zeros((B, K)) if log_q is None else log_q.astype(np.float64)
    losses, hits = [], []
    for b in range(B):
        positive = float(query[b] @ document[b, 0])
        terms, rivals = [], []
        for row in range(B):
            for column in range(K):
                is_own = (row, column) == (b, 0)
                if ids[row, column] == ids[b, 0] and not is_own:
                    continue
                score = float(query[b] @ document[row, column])
                terms.append(math.exp(score / temperature - log_q[row, column]))
                if not is_own:
                    rivals.append(score)
        logit = positive / temperature - log_q[b, 0]
        loss = math.log(sum(terms)) - logit
        if symmetric:
            others = [r for r in range(B) if r == b or ids[r, 0] != ids[b, 0]]
            total = sum(math.exp(float(query[r] @ document[b, 0]) / temperature) for r in others)
            loss = (loss + math.log(total) - positive / temperature) / 2
        losses.append(loss)
        hits.append(all(positive > rival for rival in rivals))
    return np.array(losses), np.array(hits, np.float32)


def softmax_over_positives(query, document, ids, log_q, known, temperature, symmetric, other_positives):
    """The same where each query has known positives: `known` has their ids, [B, P]. In float64, one logit at a time."""
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


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_in_batch_softmax_is_that_of_the_loops(K, corrected, temperature, symmetric):
    query, document, ids, log_q = batch(K=K)
    log_q = log_q if corrected else None
    options = dict(temperature=temperature, symmetric=symmetric)
    loss, metrics = in_batch_softmax(query, document, ids, log_q, **options)
    expected, hits = softmax_by_loops(query, document, ids, log_q, **options)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(metrics["recall@1"], hits)
    assert 0 < hits.mean() < 1


@pytest.mark.parametrize("other_positives", OTHER_POSITIVES)
@pytest.mark.parametrize(("K", "symmetric"), [(1, False), (3, False), (1, True), (3, True)])
def test_no_positive_of_a_query_is_its_negative(K, symmetric, other_positives):
    query, document, ids, log_q = batch(B=12, K=K, documents=20)
    known = known_positives(ids, P=5)
    options = dict(temperature=0.7, symmetric=symmetric, other_positives=other_positives)
    loss, metrics = in_batch_softmax(query, document, ids, log_q, positive_ids_BP=known, **options)
    expected, hits = softmax_over_positives(query, document, ids, log_q, known, **options)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(metrics["recall@1"], hits)
    before, _ = in_batch_softmax(query, document, ids, log_q, temperature=0.7, symmetric=symmetric)
    assert (np.abs(loss - before) > 1e-3).sum() >= 6  # of 12 rows


def test_long_lists_of_positives_are_compared_in_parts():
    """1,000 ids for each of 128 x 128 pairs would take 16 MB."""
    query, document, ids, log_q = batch(B=128, documents=100)
    known = np.arange(1000, 129_000, dtype=np.int32).reshape(128, 1000)
    known[:, 0] = ids[:, 0]
    known[np.arange(128), np.arange(128) * 7 + 100] = ids[::-1, 0]
    options = dict(temperature=0.5, symmetric=True)
    function = jax.jit(lambda q, d: in_batch_softmax(q, d, ids, log_q, positive_ids_BP=known, **options)[0])
    expected, _ = softmax_over_positives(query, document, ids, log_q, known, **options, other_positives="mask")
    np.testing.assert_allclose(function(query, document), expected, rtol=1e-5, atol=1e-5)
    assert function.lower(query, document).compile().memory_analysis().temp_size_in_bytes < 4e6


def test_a_query_without_a_negative_has_no_loss():
    query, document, ids, log_q = batch(K=2)
    known = np.tile(np.unique(ids), (8, 1))
    for other_positives in OTHER_POSITIVES:

        def loss(query, other_positives=other_positives):
            options = dict(positive_ids_BP=known, other_positives=other_positives, symmetric=True)
            return in_batch_softmax(query, document, ids, log_q, **options)[0].sum()

        value, gradient = jax.value_and_grad(loss)(query)
        np.testing.assert_allclose(value, 0, atol=1e-5)
        np.testing.assert_allclose(gradient, 0, atol=1e-5)


@pytest.mark.parametrize("other_positives", OTHER_POSITIVES)
def test_blocks_change_nothing(other_positives):
    """24 documents in blocks of one, in blocks that do not divide them, and in one block."""
    query, document, ids, log_q = batch(K=3)
    options = dict(
        temperature=0.3, symmetric=True, other_positives=other_positives, positive_ids_BP=known_positives(ids)
    )

    def loss(query, document, block):
        losses, metrics = in_batch_softmax(query, document, ids, log_q, block=block, **options)
        return (losses * np.arange(1, 9)).sum(), metrics["recall@1"]

    gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    expected = jax.tree.leaves(gradient(query, document, 24))
    for block in (1, 5, 12, 100):
        for a, b in zip(jax.tree.leaves(gradient(query, document, block)), expected):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=f"blocks of {block}")


def test_no_matrix_of_all_scores_is_held():
    """1,024 x 1,024 scores would take 4 MB; a block of 32 takes 0.1, and there are a few of that size."""
    query, document, ids, log_q = batch(B=1024, documents=1000)

    def loss(query, document):
        return in_batch_softmax(query, document, ids, log_q, block=32)[0].mean()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(query, document).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1.5e6


@pytest.mark.parametrize("other_positives", OTHER_POSITIVES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_gradients_are_finite_differences_of_the_loops(symmetric, other_positives):
    query, document, ids, log_q = batch(B=4, K=2, E=3, documents=6)
    known = known_positives(ids)
    options = dict(temperature=0.7, symmetric=symmetric, other_positives=other_positives)
    loss = lambda q, d: in_batch_softmax(q, d, ids, log_q, positive_ids_BP=known, **options)[0].sum()  # noqa: E731
    grads = jax.grad(loss, (0, 1))(query, document)
    by_loops = lambda q, d: softmax_over_positives(q, d, ids, log_q, known, **options)[0].sum()  # noqa: E731
    assert_finite_differences(grads, (query, document), by_loops, 1e-5)


def test_two_rows_by_hand():
    """Scores [[ln 2, 0], [ln 3, ln 5]]: p = 2 / (2 + 1) and 5 / (3 + 5)."""
    query = jnp.eye(2)
    document = jnp.log(jnp.array([[2.0, 3.0], [1.0, 5.0]]))[:, None]
    loss, metrics = in_batch_softmax(query, document, jnp.array([[7], [8]]), None)
    np.testing.assert_allclose(loss, [math.log(3 / 2), math.log(8 / 5)], rtol=1e-6)
    np.testing.assert_array_equal(metrics["recall@1"], [1, 1])
    # Document 7 is drawn four times as often as document 8: p = (2/4) / (2/4 + 1) and 5 / (3/4 + 5).
    corrected, _ = in_batch_softmax(query, document, jnp.array([[7], [8]]), jnp.log(jnp.array([[4.0], [1.0]])))
    np.testing.assert_allclose(corrected, [math.log(3), math.log(5.75 / 5)], rtol=1e-6)


def test_ties_are_misses_of_the_uncorrected_scores():
    query, document = jnp.ones((3, 4)), jnp.ones((3, 1, 4))
    ids = jnp.array([[1], [2], [3]])
    np.testing.assert_array_equal(in_batch_softmax(query, document, ids, None)[1]["recall@1"], 0)
    document = document.at[0].set(2)
    for log_q in (None, jnp.array([[100.0], [0], [0]])):
        np.testing.assert_array_equal(in_batch_softmax(query, document, ids, log_q)[1]["recall@1"], [1, 0, 0])


def test_large_scores_do_not_overflow():
    query, document, ids, log_q = batch()
    loss, grad = jax.value_and_grad(lambda q: in_batch_softmax(q * 1e4, document, ids, log_q)[0].sum())(query)
    assert np.isfinite(loss) and np.isfinite(grad).all()


def test_half_precision_embeddings_are_compared_in_float32():
    query, document, ids, log_q = batch()
    half = [jnp.asarray(x, jnp.bfloat16) for x in (query, document)]
    loss, _ = in_batch_softmax(*half, ids, log_q)
    assert loss.dtype == jnp.float32
    expected, _ = softmax_by_loops(*(np.asarray(x, np.float64) for x in half), ids, log_q, 1.0, False)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("K", "symmetric", "other_positives"),
    [(1, False, "mask"), (3, True, "mask"), (1, True, "mean"), (3, False, "mean")],
)
def test_in_batch_softmax_is_the_same_on_any_mesh(K, symmetric, other_positives):
    query, document, ids, log_q = batch(B=16, K=K, documents=12)

    def loss(scale, batch):
        query, document, ids, log_q, known = batch
        options = dict(symmetric=symmetric, positive_ids_BP=known, other_positives=other_positives)
        values, metrics = in_batch_softmax(query * scale, document, ids, log_q, **options)
        return values.mean(), (values, metrics)

    given = (query, document, ids, log_q, known_positives(ids))
    assert_loss_same_on_any_mesh(loss, jnp.linspace(0.5, 1.5, 5), given)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    query, document, ids, _ = batch()
    with pytest.raises(UserError, match=r"temperature .*: must be greater than 0"):
        in_batch_softmax(query, document, ids, None, temperature=temperature)


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
    for smoothing in (-0.1, 1.0, math.nan):
        with pytest.raises(UserError, match="label smoothing"):
            token_cross_entropy(logits, labels, weights, smoothing=smoothing)


def test_a_batch_without_masked_tokens_has_no_loss():
    logits, labels, weights = mlm_batch()
    loss, metrics = token_cross_entropy(logits, labels, 0 * weights)
    assert not loss.any() and not metrics["accuracy"].any()


def test_the_mlm_loss_is_the_same_on_any_mesh():
    def loss(scale, batch):
        logits, labels, weights = batch
        values, metrics = token_cross_entropy(logits * scale, labels, weights)
        return values.mean(), (values, metrics)

    assert_same_on_any_mesh(jax.value_and_grad(loss, has_aux=True), jnp.linspace(0.5, 1.5, 7), mlm_batch())


def of_own_negatives(name, query, document, ids, **options):
    """A loss of an example's own documents, of their inner products."""
    return OWN_NEGATIVES[name](inner_products(query, document), {"document_id": ids}, **options)


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
@pytest.mark.parametrize("K", [2, 4])
def test_losses_of_own_negatives_are_those_of_the_loops(name, K):
    query, document, ids, _ = batch(B=16, K=K, documents=4)
    assert (ids[:, 1:] == ids[:, :1]).any(axis=1).any()  # copies of the positive among its negatives
    options = {"temperature": 0.7} | ({"margin": 2.0} if name == "triplet" else {})
    loss, metrics = of_own_negatives(name, query, document, ids, **options)
    expected, hits = own_negatives_by_loops(name, query, document, ids, **options)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(metrics["recall@1"], hits)
    assert 0 < hits.mean() < 1


@pytest.mark.parametrize("name", OWN_NEGATIVES)
def test_own_negatives_losses_are_the_same_on_any_mesh(name):
    def loss(scale, batch):
        query, document, ids, _ = batch
        values, metrics = of_own_negatives(name, query * scale, document, ids)
        return values.mean(), (values, metrics)

    assert_loss_same_on_any_mesh(loss, jnp.linspace(0.5, 1.5, 5), batch(B=16, K=3, documents=12))


@pytest.mark.parametrize("name", OWN_NEGATIVES)
def test_own_negatives_are_needed(name):
    with pytest.raises(UserError, match="a loss of hard negatives, but an example has 1 document"):
        of_own_negatives(name, *batch(K=1)[:3])
    with pytest.raises(UserError, match="temperature 0: must be greater than 0"):
        of_own_negatives(name, *batch(K=2)[:3], temperature=0)


def test_free_bits_are_free_in_every_dimension():
    divergence = jnp.array([[0.1, 0.5, 2.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(free_bits(divergence, 0.3), [0.3 + 0.5 + 2.0, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(jax.grad(lambda x: free_bits(x, 0.3).sum())(divergence), [[0, 1, 1], [0, 0, 0]])
