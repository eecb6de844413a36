"""One ranked list per query out of those of two or more systems.

A run is what an index's `search` returns: scores [Q, K] and rows [Q, K], best first, row -1 where there is no result.
Every rule here gives each result of a run a gain; a candidate's score is the sum, or the greatest, of its gains.
"""

from collections.abc import Callable, Sequence

import numpy as np

from retrieval.common.errors import UserError
from retrieval.search.exact import no_results

Run = tuple[np.ndarray, np.ndarray]

# Of the dense list in the sum with BM25's, where no validation questions choose it: that of `config.fuse.dense_weight`.
DENSE_WEIGHT = 0.5

_CONSTANT = 60  # of reciprocal ranks

# Queries that are fused at once: bounds the memory, whatever the number of queries.
_BATCH = 8192


def interleave(runs: Sequence[Run], k: int) -> Run:
    """The first result of each run, then the second of each, and so on (Zhan et al. 2020, equation 6).

    A candidate stands where it comes first. Where a run ends, the others go on. The first of `runs` starts: another
    order is another result.

    Returns:
      Rows, and as scores 1 / the place in the list before repeated candidates were dropped.

    Raises:
      UserError: there are fewer than two runs.
    """
    gains = [lambda scores, first=first: 1 / (_places(scores) * len(runs) + first) for first in range(1, len(runs) + 1)]
    return _fuse(runs, gains, np.maximum, k)


def reciprocal_rank(runs: Sequence[Run], k: int) -> Run:
    """Orders candidates by the sum of 1 / (60 + rank) over the runs (Cormack et al. 2009), ties to the smaller row.

    Raises:
      UserError: there are fewer than two runs.
    """
    return _fuse(runs, [lambda scores: 1 / (_CONSTANT + 1 + _places(scores))] * len(runs), np.add, k)


def weighted_sum(runs: Sequence[Run], weights: Sequence[float], k: int) -> Run:
    """Orders candidates by the weighted sum of their scores, ties to the smaller row.

    The scores of a run are scaled, query by query, to 1 for its first result and 0 for its last (min-max); what a run
    did not find gets 0 from it. Where all results are equally good, all of them get 1.

    Raises:
      UserError: there are fewer than two runs, or the weights are not one number of 0 or more for each, one above 0.
    """
    if len(weights) != len(runs) or not all(0 <= weight < np.inf for weight in weights) or not any(weights):
        raise UserError(f"weighted sum: weights {tuple(weights)} for {len(runs)} runs; give each a number of 0 or more")
    gains = [lambda scores, weight=weight: weight * _scaled(scores, np.inf) for weight in weights]
    return _fuse(runs, gains, np.add, k)


def hybrid(words: Run, dense: Run, weight: float, k: int) -> Run:
    """The weighted sum of BM25's run and of the dense one.

    BM25's list, where it is not full, ends with 0, the score of a text without any of the words: its last result is
    better than what it did not find. A dense list that is not full has all that there is.

    Args:
      weight: of the dense run; BM25's has the rest of 1.
    """
    gains = [lambda scores: (1 - weight) * _scaled(scores, 0), lambda scores: weight * _scaled(scores, np.inf)]
    return _fuse([words, dense], gains, np.add, k)


def _fuse(runs: Sequence[Run], gains: Sequence[Callable[[np.ndarray], np.ndarray]], combine: np.ufunc, k: int) -> Run:
    """Orders candidates by their gains, ties to the smaller row.

    Args:
      gains: from the scores of each run to its gains, both [Q, K].
      combine: of the gains of one candidate.
    """
    if len(runs) < 2:
        raise UserError(f"fusion of {len(runs)} runs; at least two are needed")
    scores_QK, rows_QK = no_results(len(runs[0][1]), k)
    for start in range(0, len(rows_QK), _BATCH):
        batch = slice(start, start + _BATCH)
        gained = [gain(scores[batch]) for gain, (scores, _) in zip(gains, runs)]
        scores, rows = _combined([rows[batch] for _, rows in runs], gained, combine)
        depth = min(k, rows.shape[1])
        scores_QK[batch, :depth] = scores[:, :depth]
        rows_QK[batch, :depth] = np.where(np.isneginf(scores), -1, rows)[:, :depth]
    return scores_QK, rows_QK


def _places(scores: np.ndarray) -> np.ndarray:
    """The place of each result in its list, counted from 0; float64 [Q, K]."""
    return np.broadcast_to(np.arange(scores.shape[1], dtype=np.float64), scores.shape)


def _scaled(scores: np.ndarray, end: float) -> np.ndarray:
    """Scores [Q, K], best first, to [0, 1] per query; 0 where there is no result.

    Args:
      end: the highest score that a list may end with which is not full.
    """
    scores = scores.astype(np.float64)
    is_result = np.isfinite(scores)
    last = np.where(is_result, scores, end).min(axis=1, keepdims=True)
    scores = np.where(is_result, scores, 0)
    span = scores[:, :1] - last
    relative = (scores - last) / np.where(span > 0, span, 1)
    return np.where(is_result, np.where(span > 0, relative, 1), 0)


def _combined(lists: list[np.ndarray], gains: list[np.ndarray], combine: np.ufunc) -> Run:
    rows, gain = np.concatenate(lists, axis=1), np.concatenate(gains, axis=1)
    rows, gain = _take((rows, gain), np.argsort(rows, axis=1, kind="stable"))
    total = gain.copy()
    for distance in range(1, len(lists)):
        same = rows[:, distance:] == rows[:, :-distance]
        total[:, :-distance] = np.where(same, combine(total[:, :-distance], gain[:, distance:]), total[:, :-distance])
    repeated = np.zeros(rows.shape, bool)
    repeated[:, 1:] = rows[:, 1:] == rows[:, :-1]
    # float64 sums, rounded before they are compared: equal ones tie, in whichever order they were added.
    scores = np.where(repeated | (rows < 0), -np.inf, total).astype(np.float32)
    return _take((scores, rows), np.argsort(-scores, axis=1, kind="stable"))


def _take(arrays: tuple[np.ndarray, np.ndarray], order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.take_along_axis(arrays[0], order, axis=1), np.take_along_axis(arrays[1], order, axis=1)
