"""One ranked list per query out of the lists of several systems.

A run is what an index's `search` returns: scores [Q, K] and rows [Q, K], best first, row -1 where there is no result.
"""

from collections.abc import Sequence

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
    queries = {len(rows) for _, rows in runs}
    if len(queries) != 1:
        raise ValueError(f"the runs to be fused have {sorted(queries)} queries: they must have the same number")
    scores_QK, rows_QK = no_results(queries.pop(), k)
    for start in range(0, len(rows_QK), _BATCH):
        batch = slice(start, start + _BATCH)
        gains = [weight * _scaled(scores[batch]) for weight, (scores, _) in zip(weights, runs, strict=True)]
        scores, rows = _sum_gains([rows[batch] for _, rows in runs], gains)
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


def _take(arrays: tuple[np.ndarray, np.ndarray], order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.take_along_axis(arrays[0], order, axis=1), np.take_along_axis(arrays[1], order, axis=1)
