"""Candidates of several windows against the maximum over all of their windows, ties to the first."""

import numpy as np
import pytest

from retrieval.search import windows
from retrieval.search.exact import ExactIndex
from retrieval.search.windows import WindowIndex, fold, owners


def collection(seed, candidates=70, most=4):
    """Windows of whole numbers, so that many scores are the same; some candidates have windows that look alike."""
    rng = np.random.default_rng(seed)
    owners_W = np.repeat(np.arange(candidates), rng.integers(1, most + 1, candidates)).astype(np.int32)
    centres = rng.integers(-2, 3, (candidates, 6))
    windows_WE = centres[owners_W] * 2 + rng.integers(-1, 2, (len(owners_W), 6))
    return windows_WE.astype(np.float32), owners_W, rng.integers(-2, 3, (23, 6)).astype(np.float32)


def brute_force(windows_WE, owners_W, queries_QE, k):
    """The best window of every candidate, then all candidates in order."""
    scores_QW = queries_QE @ windows_WE.T
    scores_QN = np.stack([scores_QW[:, owners_W == row].max(axis=1) for row in range(owners_W[-1] + 1)], axis=1)
    rows_QK = np.argsort(-scores_QN, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores_QN, rows_QK, axis=1), rows_QK


class Counted:
    """Exact search that keeps how many queries were asked for how many windows."""

    def __init__(self, windows_WE):
        self._index = ExactIndex(windows_WE)
        self.asked = []

    def search(self, queries_QE, k):
        self.asked.append((len(queries_QE), k))
        return self._index.search(queries_QE, k)


@pytest.mark.parametrize("k", [7, pytest.param(75, marks=pytest.mark.long)])
def test_as_the_maximum_over_all_windows(k, monkeypatch):
    monkeypatch.setattr(windows, "_BATCH", 10)
    for seed in range(2):
        windows_WE, owners_W, queries_QE = collection(seed)
        scores, rows = WindowIndex(ExactIndex(windows_WE), owners_W).search(queries_QE, k)
        expected_scores, expected_rows = brute_force(windows_WE, owners_W, queries_QE, k)
        np.testing.assert_array_equal(rows[:, :70], expected_rows)
        np.testing.assert_array_equal(scores[:, :70], expected_scores)
        assert (rows[:, 70:] == -1).all() and np.isneginf(scores[:, 70:]).all()
        assert (scores.dtype, rows.dtype) == (np.float32, np.int32)


def test_only_queries_with_few_candidates_are_asked_again():
    """Candidates 0 and 1 have four windows each; what the first query likes best are these eight."""
    owners_W = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 4], np.int32)
    windows_WE = np.array([[9, 0]] * 4 + [[8, 0]] * 4 + [[7, 3], [0, 2], [0, 1]], np.float32)
    index = Counted(windows_WE)
    _, rows = WindowIndex(index, owners_W).search(np.array([[1, 0], [0, 1]], np.float32), 3)
    assert rows.tolist() == [[0, 1, 2], [2, 3, 4]]
    assert index.asked == [(2, 6), (1, 9)]  # 2 * 4 + 1 windows are always enough


def test_fold_by_hand():
    scores = np.array([[5, 4, 4, 3, -np.inf], [2, 2, 1, 0, 0]], np.float32)
    rows = np.array([[3, 3, 1, 3, -1], [0, 2, 0, 2, 5]], np.int32)
    folded_scores, folded_rows = fold(scores, rows, 3)
    assert folded_rows.tolist() == [[3, 1, -1], [0, 2, 5]]
    assert folded_scores.tolist() == [[5, 4, -np.inf], [2, 2, 0]]
    assert fold(scores, rows, 7)[1].tolist() == [[3, 1, -1, -1, -1, -1, -1], [0, 2, 5, -1, -1, -1, -1]]


def test_row_ids_tell_whose_windows_they_are():
    assert owners(["b", "b", "a", "c", "c", "c"]).tolist() == [0, 0, 1, 2, 2, 2]
    assert owners([]).tolist() == []
    index = object()
    assert windows.over_candidates(index, owners(["b", "a"])) is index
    assert isinstance(windows.over_candidates(index, owners(["b", "b"])), WindowIndex)
