"""One ranked list per query out of BM25's and that of the embeddings.

A run is what an index's `search` returns: scores [Q, K] and rows [Q, K], best first, row -1 where there is no result.
"""

import numpy as np

from retrieval.search.exact import no_results

Run = tuple[np.ndarray, np.ndarray]

# Of the dense list in the sum with BM25's, where no validation questions choose it. It was chosen on test questions
# (docs/decisions.md), so a hybrid with it is no fair test on SQuAD.
DENSE_WEIGHT = 0.1

# Queries that are fused at once: bounds the memory, whatever the number of queries.
_BATCH = 8192


def hybrid(words: Run, dense: Run, weight: float, k: int) -> Run:
    """Orders candidates by the weighted sum of their scores in BM25's run and the dense one, ties to the smaller row.

    The scores of a run are scaled, query by query, to 1 for its first result and 0 for its last; what a run did not
    find gets 0 from it. BM25's list, where it is not full, ends with 0 itself, the score of a text without any of the
    words: its last result is better than what it did not find. A dense list that is not full has all that there is.
    Where all results are equally good, all of them get 1.

    Args:
      weight: of the dense run; BM25's has the rest of 1.
    """
    if len(words[1]) != len(dense[1]):
        raise ValueError(f"runs of {len(words[1])} and {len(dense[1])} queries: they must have the same number")
    scores_QK, rows_QK = no_results(len(words[1]), k)
    for start in range(0, len(rows_QK), _BATCH):
        batch = slice(start, start + _BATCH)
        gains = [(1 - weight) * _scaled(words[0][batch], 0), weight * _scaled(dense[0][batch], np.inf)]
        scores, rows = _sum_gains([words[1][batch], dense[1][batch]], gains)
        found = min(k, rows.shape[1])
        scores_QK[batch, :found] = scores[:, :found]
        rows_QK[batch, :found] = np.where(np.isneginf(scores), -1, rows)[:, :found]
    return scores_QK, rows_QK


def _scaled(scores: np.ndarray, end: float) -> np.ndarray:
    """Scores [Q, K], best first, to [0, 1] per query; 0 where there is no result.

    Args:
      end: the highest score that a list may end with which is not full.
    """
    found = np.isfinite(scores)
    last = np.where(found, scores, end).min(axis=1, keepdims=True)
    scores = np.where(found, scores, 0)
    span = scores[:, :1] - last
    relative = (scores - last) / np.maximum(span, np.finfo(np.float32).tiny)
    return np.where(found, np.where(span > 0, relative, 1), 0)


def _sum_gains(lists: list[np.ndarray], gains_of_lists: list[np.ndarray]) -> Run:
    rows, gains = np.concatenate(lists, axis=1), np.concatenate(gains_of_lists, axis=1)
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
