"""RepBERT's loss against loops in float64."""

import jax
import numpy as np
import pytest

from retrieval.training.objectives.margins import NO_DOCUMENT, MultiLabelMargin


def batch(B=16, K=1, E=5, documents=12, most=3, seed=0):
    """Few ids, so that positives lie in other rows and come twice; queries of 0 to `most` positives."""
    random = np.random.default_rng(seed)
    query, document = random.normal(size=(B, E)), random.normal(size=(B, K, E))
    positive = random.permuted(np.tile(np.arange(documents), (B, 1)), axis=1)[:, :most]
    positive = np.where(np.arange(most) < np.arange(B)[:, None] % (most + 1), positive, NO_DOCUMENT)
    ids = random.integers(0, documents, (B, K))
    return query.astype(np.float32), document.astype(np.float32), ids.astype(np.int32), positive.astype(np.int32)


def by_loops(query, document, ids, positive, margin=1.0):
    """Losses, recall@1 and shares of active pairs, one pair at a time."""
    scores = query.astype(np.float64) @ document.reshape(-1, document.shape[-1]).astype(np.float64).T
    losses, hits, shares = [], [], []
    for row, known in zip(scores, positive.tolist()):
        is_positive = [id in known for id in ids.reshape(-1).tolist()]
        good = [score for score, yes in zip(row, is_positive) if yes]
        others = [score for score, yes in zip(row, is_positive) if not yes]
        hinges = [max(0, margin - (a - b)) for a in good for b in others]
        losses.append(sum(hinges) / len(row))
        hits.append(bool(good) and all(max(good) > score for score in others))
        shares.append(np.mean([hinge > 0 for hinge in hinges]) if hinges else 0)
    return np.array(losses), np.array(hits, np.float32), np.array(shares)


@pytest.mark.parametrize(("K", "margin"), [(1, 1.0), (2, 3.0)])
def test_the_loss_is_that_of_the_loops(K, margin):
    arrays = query, document, ids, positive = batch(K=K)
    loss, metrics = MultiLabelMargin(margin)(query, document, {"document_id": ids, "positive_ids": positive})
    expected, hits, shares = by_loops(*arrays, margin)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(metrics["recall@1"], hits)
    np.testing.assert_allclose(metrics["active"], shares, atol=1e-6)
    assert 0 < hits.mean() < 1 and (expected == 0).any()


def test_no_array_of_pairs_is_held():
    """256 x 8 x 256 pairs would take 2 MB, 256 x 256 x 256 take 64; a matrix of scores takes 0.25."""
    query, document, ids, positive = batch(B=256, documents=200, most=8)

    def loss(query, document):
        return MultiLabelMargin()(query, document, {"document_id": ids, "positive_ids": positive})[0].mean()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(query, document).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1.9e6
