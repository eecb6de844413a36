"""Fusion of ranked lists against loops over dictionaries."""

import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.search import fusion
from retrieval.search.fusion import hybrid, interleave, reciprocal_rank, weighted_sum


def run(*lists):
    rows = np.array(lists, np.int32)
    return np.zeros(rows.shape, np.float32), rows


def random_runs(seed, queries=40):
    """Two runs of different lengths over few candidates, some with fewer results than places."""
    rng = np.random.default_rng(seed)
    runs = []
    for length in (12, 7):
        rows = rng.permuted(np.tile(np.arange(25), (queries, 1)), axis=1)[:, :length]
        found = rng.integers(0, length + 1, (queries, 1))
        runs.append(run(*np.where(np.arange(length) < found, rows, -1)))
    return runs


@pytest.mark.parametrize("weight", [0.3, 0.0, 0.5])
def test_weighted_sums_equal_a_loop_over_dictionaries(weight, monkeypatch):
    monkeypatch.setattr(fusion, "_BATCH", 7)
    rng = np.random.default_rng(0)
    runs = []
    for _, rows in random_runs(5):
        scores = -np.sort(-rng.normal(size=rows.shape).astype(np.float32), axis=1)
        scores[1], scores[2] = 1.0, 0.0  # as good as each other
        runs.append((np.where(rows < 0, -np.inf, scores), rows))
    scores, rows = hybrid(*runs, weight, 15)
    for query in range(len(rows)):
        totals = {}
        for is_dense, (run_scores, run_rows) in enumerate(runs):
            found = run_scores[query][run_rows[query] >= 0]
            for score, row in zip(found, run_rows[query]):
                floor = found.min() if is_dense or len(found) == len(run_rows[query]) else min(0.0, found.min())
                span = found[0] - floor
                scaled = (score - floor) / span if span else 1.0
                totals[row] = totals.get(row, 0.0) + (weight if is_dense else 1 - weight) * scaled
        expected = sorted(totals.values(), reverse=True)[:15]
        np.testing.assert_allclose(scores[query, : len(expected)], expected, atol=1e-6)
        for score, row in zip(scores[query], rows[query][: len(expected)]):
            assert totals[row] == pytest.approx(score, abs=1e-6)
        assert (rows[query, len(expected) :] == -1).all()


def interleaved(lists, k):
    """Equation 6, one result at a time."""
    merged = []
    for place in range(max(map(len, lists))):
        merged += [ranked[place] for ranked in lists if place < len(ranked)]
    return list(dict.fromkeys(merged))[:k]


def by_reciprocal_ranks(lists, k):
    totals = {}
    for ranked in lists:
        for rank, row in enumerate(ranked, 1):
            totals[row] = totals.get(row, 0) + 1 / (60 + rank)
    return sorted(totals, key=lambda row: (-np.float32(totals[row]), row))[:k]


def results(rows):
    return [[row for row in query if row >= 0] for query in rows.tolist()]


def test_equal_sums_are_ordered_by_row():
    """Rows 7, 9 and 10 have 0.2 each, by other runs; in float32 these would not be equal."""
    scored = [
        ([0, 9, 5, 7], [3, 2, 1, 0]),
        ([11, 1, 2, 3, 4, 7], [3, 2, 2, 1, 1, 0]),
        ([10, 7, 3, 2, 11], [3, 3, 3, 1, 0]),
    ]
    runs = [(np.array([scores], np.float32), np.array([rows])) for rows, scores in scored]
    scores, rows = weighted_sum(runs, (0.3, 0.5, 0.2), 12)
    of_row = dict(zip(rows[0].tolist(), scores[0].tolist()))
    assert of_row[7] == of_row[9] == of_row[10]
    assert [row for row in rows[0] if row in (7, 9, 10)] == [7, 9, 10]


@pytest.mark.parametrize("k", [3, 40])
def test_fusions_of_three_runs_equal_loops_over_lists(k, monkeypatch):
    monkeypatch.setattr(fusion, "_BATCH", 7)
    runs = [*random_runs(1), random_runs(2)[0]]
    lists = list(zip(*(results(rows) for _, rows in runs)))
    assert results(interleave(runs, k)[1]) == [interleaved(ranked, k) for ranked in lists]
    assert results(reciprocal_rank(runs, k)[1]) == [by_reciprocal_ranks(ranked, k) for ranked in lists]
    for scores, rows in (interleave(runs, k), reciprocal_rank(runs, k)):
        assert rows.shape == (40, k) and (np.isneginf(scores) == (rows < 0)).all()
        assert not (scores[:, 1:] > scores[:, :-1]).any()


def test_bad_arguments_of_fusions():
    a = run([1, 2])
    for fuse in (interleave, reciprocal_rank):
        with pytest.raises(UserError, match="at least two are needed"):
            fuse([a], 3)
    for weights in ([1], [1, -1], [1, np.nan], [0, 0], [1, np.inf]):
        with pytest.raises(UserError, match="give each a number of 0 or more"):
            weighted_sum([a, a], weights, 3)
