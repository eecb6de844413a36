"""One ranked list per query out of the lists of several systems.

A run is what an index's `search` returns: scores [Q, K] and rows [Q, K], best first, row -1 where there is no result.
"""

from collections.abc import Callable, Sequence

import numpy as np

from retrieval.search.exact import no_results

Run = tuple[np.ndarray, np.ndarray]

# Of the dense list in the sum with BM25's, unless validation questions show that another one is better.
DENSE_WEIGHT = 0.1

# Queries that are fused at once: bounds the memory, whatever the number of queries.
_BATCH = 8192


def weighted_sum(runs: Sequence[Run], weights: Sequence[float], k: int) -> Run:
    """Orders candidates by the weighted sum of their scores, ties to the smaller row.

    The scores of a run are scaled, query by query, to 1 for its first result and 0 for its last; what a run did not
    find gets 0 from it. A list that is not full ends with 0 itself, BM25's score of a text without any of the words:
    its last result is better than what it did not find. Where all results are equally good, all of them get 1.
    """

    def gains(batch: list[Run]) -> list[np.ndarray]:
        return [weight * _scaled(scores) for weight, (scores, _) in zip(weights, batch, strict=True)]

    return _fuse(runs, k, lambda batch: _sum_gains([rows for _, rows in batch], gains(batch)))


def alternate(runs: Sequence[Run], k: int) -> Run:
    """The first result of each run in turn, then the second of each, and so on; only the first occurrence counts.

    The hybrid of RepBERT (Zhan et al. 2020). The score is 1 / rank in the new list.
    """
    return _fuse(runs, k, lambda batch: _interleave([rows for _, rows in batch]))


def _fuse(runs: Sequence[Run], k: int, fuse: Callable[[list[Run]], Run]) -> Run:
    """Applies `fuse` to batches of queries; keeps the best `k` of each query."""
    queries = {len(rows) for _, rows in runs}
    if len(queries) != 1:
        raise ValueError(f"the runs to be fused have {sorted(queries)} queries: they must have the same number")
    scores_QK, rows_QK = no_results(queries.pop(), k)
    for start in range(0, len(rows_QK), _BATCH):
        batch = slice(start, start + _BATCH)
        scores, rows = fuse([(scores[batch], rows[batch]) for scores, rows in runs])
        found = min(k, rows.shape[1])
        scores_QK[batch, :found] = scores[:, :found]
        rows_QK[batch, :found] = np.where(np.isneginf(scores), -1, rows)[:, :found]
    return scores_QK, rows_QK


def _scaled(scores: np.ndarray) -> np.ndarray:
    """Scores [Q, K], best first, to [0, 1] per query; 0 where there is no result."""
    found = np.isfinite(scores)
    scores = np.where(found, scores, 0)
    last = scores.min(axis=1, keepdims=True)  # 0 at most where the list is not full
    span = scores[:, :1] - last
    relative = (scores - last) / np.maximum(span, np.finfo(np.float32).tiny)
    return np.where(found, np.where(span > 0, relative, 1), 0)


def _sum_gains(lists: list[np.ndarray], gains: list[np.ndarray]) -> Run:
    rows, gains = np.concatenate(lists, axis=1), np.concatenate(gains, axis=1)
    rows, gains = _take((rows, gains), np.argsort(rows, axis=1, kind="stable"))
    totals = gains.copy()
    for distance in range(1, len(lists)):
        same = rows[:, distance:] == rows[:, :-distance]
        totals[:, :-distance] += np.where(same, gains[:, distance:], 0)
    repeated = np.zeros(rows.shape, bool)
    repeated[:, 1:] = rows[:, 1:] == rows[:, :-1]
    # float64 sums, rounded before they are compared: equal ones tie, in whichever order they were added.
    scores = np.where(repeated | (rows < 0), -np.inf, totals).astype(np.float32)
    return _take((scores, rows), np.argsort(-scores, axis=1, kind="stable"))


def repeated(rows_QK: np.ndarray) -> np.ndarray:
    """Which results [Q, K] stand earlier in their list already, or are none (-1)."""
    order_QK = np.argsort(rows_QK, axis=1, kind="stable")
    in_order_QK = np.take_along_axis(rows_QK, order_QK, axis=1)
    again_QK = in_order_QK < 0
    again_QK[:, 1:] |= in_order_QK[:, 1:] == in_order_QK[:, :-1]
    left_out_QK = np.empty_like(again_QK)
    np.put_along_axis(left_out_QK, order_QK, again_QK, axis=1)
    return left_out_QK


def _interleave(lists: list[np.ndarray]) -> Run:
    longest = max(rows.shape[1] for rows in lists)
    lists = [np.pad(rows, ((0, 0), (0, longest - rows.shape[1])), constant_values=-1) for rows in lists]
    rows = np.stack(lists, axis=2).reshape(len(lists[0]), -1)
    left_out = repeated(rows)
    left_out, rows = _take((left_out, rows), np.argsort(left_out, axis=1, kind="stable"))
    return np.where(left_out, -np.inf, 1 / (1 + np.arange(rows.shape[1]))), rows


def _take(arrays: tuple[np.ndarray, np.ndarray], order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.take_along_axis(arrays[0], order, axis=1), np.take_along_axis(arrays[1], order, axis=1)
