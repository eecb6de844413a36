"""Indexes over others: candidates that are cut into windows (MaxP), and results that are scored again.

A candidate's score is that of its best window (Dai and Callan 2019; ANCE's document run, Xiong et al. 2021). Results
are scored again by the inner product of the query with embeddings that are finer than the index's codes.

Shape letters: Q queries, B of them at a time, E dimensions, W windows, X windows or results that were found, M rows, K
results.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from retrieval.common.errors import UserError
from retrieval.search.exact import merge, no_results

# Windows that are asked for at first, for every candidate that is wanted, and queries that are folded at a time.
_FIRST, _BATCH = 2, 8192
_ROWS = 32_768  # that are read at a time to score again, at least those of one query


class Index(Protocol):
    """Exact search or ScaNN."""

    def search(self, queries_QE: np.ndarray, k: int, /) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows [Q, k], best first, ties to the smaller row."""
        ...


def owners(ids: Sequence[str]) -> np.ndarray:
    """The candidate of each window [W], from 0 on, by the ids of the windows: those of a candidate are neighbours."""
    return np.cumsum([id != before for before, id in zip([None, *ids], ids)], dtype=np.int32) - 1


def over_candidates(index: Index, owners_W: np.ndarray) -> Index:
    """The index itself where every candidate is one window, else a `WindowIndex`."""
    return WindowIndex(index, owners_W) if len(owners_W) and owners_W[-1] + 1 < len(owners_W) else index


class WindowIndex:
    """An index over windows as one over candidates: no candidate is there twice, and ties go to the smaller row.

    Over exact search it is exact.
    """

    def __init__(self, index: Index, owners_W: np.ndarray):
        """Args:
        owners_W: the candidate of each window, ascending from 0 on.
        """
        self._index = index
        self._owners_W = owners_W
        self._candidates = int(owners_W[-1]) + 1
        self._most = int(np.bincount(owners_W).max())

    def search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The `k` candidates with the best windows for each query."""
        scores_QK, rows_QK = no_results(len(queries_QE), k)
        for start in range(0, len(queries_QE), _BATCH):
            part = slice(start, start + _BATCH)
            scores_QK[part], rows_QK[part] = self._search(queries_QE[part], k)
        return scores_QK, rows_QK

    def _search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the first windows of a list are of `k` candidates, these are the best; only the others are asked again.

        Before the best window of the k-th there are at most all windows of the k - 1 before it.

        A search takes longer the more results it has: for 1,000 of 100,000 candidates the second list takes twice as
        long as the first.
        """
        wanted = min(k, self._candidates)
        deep = min((wanted - 1) * self._most + 1, len(self._owners_W))
        first = min(_FIRST * wanted, deep)
        scores_QK, rows_QK = self._folded(queries_QE, first, k)
        short = np.flatnonzero(rows_QK[:, wanted - 1] < 0)
        if len(short) and first < deep:
            scores_QK[short], rows_QK[short] = self._folded(queries_QE[short], deep, k)
        return scores_QK, rows_QK

    def _folded(self, queries_QE: np.ndarray, windows: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores_QX, windows_QX = self._index.search(queries_QE, windows)
        return fold(scores_QX, np.where(windows_QX < 0, -1, self._owners_W[windows_QX]), k)


def fold(scores_QX: np.ndarray, rows_QX: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `k` candidates of each list, each where it comes first.

    Args:
      scores_QX: best first.
      rows_QX: candidates, any number of times each; -1 where there is no result.
    """
    order_QX = np.argsort(rows_QX, axis=1, kind="stable")
    in_order_QX = np.take_along_axis(rows_QX, order_QX, axis=1)
    again_QX = in_order_QX < 0  # or they stand earlier in their list already
    again_QX[:, 1:] |= in_order_QX[:, 1:] == in_order_QX[:, :-1]
    left_out_QX = np.empty_like(again_QX)
    np.put_along_axis(left_out_QX, order_QX, again_QX, axis=1)
    places_QK = np.argsort(left_out_QX, axis=1, kind="stable")[:, :k]
    out_QK = np.take_along_axis(left_out_QX, places_QK, axis=1)
    scores_QK, folded_QK = no_results(len(rows_QX), k)
    depth = places_QK.shape[1]
    scores_QK[:, :depth] = np.where(out_QK, -np.inf, np.take_along_axis(scores_QX, places_QK, axis=1))
    folded_QK[:, :depth] = np.where(out_QK, -1, np.take_along_axis(rows_QX, places_QK, axis=1))
    return scores_QK, folded_QK


class Rescored:
    """An index whose results come in the order of exact scores."""

    def __init__(self, index: Index, take: Callable[[np.ndarray], np.ndarray], multiplier: int):
        """Args:
        take: rows [M] to embeddings [M, E].
        multiplier: results of the index that are scored again, for each that is wanted.
        """
        self._index, self._take, self._multiplier = index, take, multiplier

    def search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The best `k` of the index's first `multiplier` x `k`, ties to the smaller row."""
        _, rows_QX = self._index.search(queries_QE, k * self._multiplier)
        lists = [no_results(0, k)]
        step = max(1, _ROWS // rows_QX.shape[1])
        for start in range(0, len(rows_QX), step):
            part = slice(start, start + step)
            scores_BX = self._scores(np.asarray(queries_QE[part], np.float32), rows_QX[part])
            lists.append(merge([(scores_BX, rows_QX[part])], len(scores_BX), k))
        scores, rows = zip(*lists)
        return np.concatenate(scores), np.concatenate(rows)

    def _scores(self, queries_BE: np.ndarray, rows_BX: np.ndarray) -> np.ndarray:
        rows_M, places_BX = np.unique(rows_BX, return_inverse=True)
        if rows_M[0] < 0:  # which is no row: it is given one, and its score is taken away
            rows_M[0] = max(rows_M[-1], 0)
        vectors_ME = self._take(rows_M)
        scores_BX = np.stack([vectors_ME[places_X] @ query_E for places_X, query_E in zip(places_BX, queries_BE)])
        if not np.isfinite(scores_BX).all():
            raise UserError("an inner product with a stored embedding is not finite: encode again")
        return np.where(rows_BX < 0, -np.inf, scores_BX).astype(np.float32)
