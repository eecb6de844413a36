"""Depth tables and consistency against loops."""

import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.evaluation.depths import by_depth, consistency_factor, reranked

QUERIES, CANDIDATES = [f"q{n}" for n in range(20)], [f"d{n}" for n in range(30)]


def random_run(seed, k=12):
    """Lists of 0 to k candidates."""
    rng = np.random.default_rng(seed)
    rows = rng.permuted(np.tile(np.arange(30), (20, 1)), axis=1)[:, :k]
    return np.where(np.arange(k) < rng.integers(0, k + 1, (20, 1)), rows, -1).astype(np.int32)


def test_exactly_the_first_results_are_reranked():
    rows = np.array([[4, 2, 7, 1], [3, 5, -1, -1]], np.int32)
    scores = np.array([[0.1, 0.9, 0.1, 5], [-2, 1, 9, 9]], np.float32)
    new_scores, new_rows = reranked(scores, rows, 3)
    assert new_rows.tolist() == [[2, 4, 7], [5, 3, -1]]
    np.testing.assert_allclose(new_scores, [[0.9, 0.1, 0.1], [1, -2, -np.inf]])
    for depth in (0, 5):
        with pytest.raises(UserError, match=f"depth {depth}: the run has lists of at most 4 results"):
            reranked(scores, rows, depth)
    with pytest.raises(ValueError, match="NaN"):
        reranked(np.where(rows == 2, np.nan, scores), rows, 2)


def test_metrics_by_depth_equal_loops():
    rng = np.random.default_rng(1)
    rows, scores = random_run(0), rng.integers(0, 5, (20, 12)).astype(np.float32)
    qrels = {query: {f"d{n}": 1 for n in rng.choice(30, 3)} for query in QUERIES[:15]}
    table = by_depth(scores, rows, (2, 12), QUERIES, CANDIDATES, qrels)
    for depth, values in table.items():
        recalls, reciprocals = [], []
        for number, (query, relevant) in enumerate(zip(QUERIES, qrels.values())):
            places = [place for place in range(depth) if rows[number, place] >= 0]
            order = sorted(places, key=lambda place: (-scores[number, place], place))
            ranked = [f"d{rows[number, place]}" for place in order]
            assert qrels[query] is relevant
            recalls.append(len(relevant.keys() & ranked) / len(relevant))
            reciprocals.append(next((1 / rank for rank, id in enumerate(ranked[:10], 1) if id in relevant), 0))
        assert values == pytest.approx({f"R@{depth}": np.mean(recalls), "RR@10": np.mean(reciprocals)})
    assert 0 < table[2]["RR@10"] != table[12]["RR@10"]


def test_consistency_equals_loops():
    rows, reference = random_run(2), random_run(3, k=25)
    factors = consistency_factor(rows, reference, [1, 4, 12])
    for depth, factor in factors.items():
        shares = [
            len({row for row in found[:depth] if row >= 0} & set(others)) / depth
            for found, others in zip(rows.tolist(), reference.tolist())
        ]
        assert factor == pytest.approx(np.mean(shares))
    assert consistency_factor(reference[:, :2], reference[:, :2], [1])[1] == np.mean(reference[:, 0] >= 0)
    with pytest.raises(UserError, match="depth 13: the run has lists of at most 12 results; take 1 to 12"):
        consistency_factor(rows, reference, [13])
    with pytest.raises(ValueError, match="of 19 and 20 queries"):
        consistency_factor(rows[1:], reference, [1])
