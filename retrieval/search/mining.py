"""Hard negatives out of ranked lists: what an index ranks high for a query, and what is no answer to it.

Any index serves: BM25 (Karpukhin et al. 2020, section 3.2) or the embeddings of the model that is trained (Xiong et al.
2021, ANCE). Shape letters: Q queries, K results, N candidates.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np


class Rule(NamedTuple):
    """Which of a query's results are its negatives.

    Attributes:
      count: how many are drawn from those that the rest leaves.
      first, last: their ranks, from 1 on, when the positives have been taken out of the list.
      margin: how much lower than the best positive they score at least; 0 for any score.
      relative_margin: the same as a share of that positive's score.
    """

    count: int
    first: int
    last: int
    margin: float = 0.0
    relative_margin: float = 0.0


class Drawn(NamedTuple):
    """What was found for some queries.

    Attributes:
      rows: of each query, the candidates drawn, best first; at most `Rule.count`.
      left_Q: how many there were to draw from.
      rank_Q: of the best positive in the whole list without the query itself, from 1 on; 0 where it has none.
      too_close: results in the range of ranks that the margins left out, of all queries.
      answered: further ones that are left out because they hold an answer.
      equal: results down to the last rank that have the text of a positive, or of a better result, under another id.
    """

    rows: list[np.ndarray]
    left_Q: np.ndarray
    rank_Q: np.ndarray
    too_close: int
    answered: int
    equal: int


def mine(
    scores_QK: np.ndarray,
    rows_QK: np.ndarray,
    *,
    positives: Sequence[Collection[int]],
    others: Sequence[Collection[int]],
    texts_N: np.ndarray,
    rule: Rule,
    seed: Sequence[int],
    start: int = 0,
    answered_QK: np.ndarray | None = None,
) -> Drawn:
    """Draws negatives for each query from its ranked list.

    A candidate with the text of a positive is a positive, whatever its id, and of several candidates with one text the
    best counts. Where a margin is asked for and the list has no positive, nothing is left: all that is in it scores at
    least as high as the positives that are not.

    Args:
      scores_QK, rows_QK: what an index gave, best first; rows of -1 where it found fewer.
      positives: rows of each query's known positives.
      others: rows that are no results, such as that of the query itself.
      texts_N: a number for every candidate, the same for the same text.
      seed: of the draw, which depends on nothing else but the number of the query.
      start: the number of the first query, where they come in parts.
      answered_QK: whether a result holds an answer of its query, and so is none of its negatives; by default none does.
    """
    drawn, left_Q, rank_Q = [], np.zeros(len(rows_QK), int), np.zeros(len(rows_QK), int)
    too_close, answered, equal = 0, 0, 0
    answered_QK = np.zeros(rows_QK.shape, bool) if answered_QK is None else answered_QK
    lists = zip(scores_QK, rows_QK, answered_QK, positives, others, strict=True)
    for query, (scores_K, rows_K, answered_K, golds, out) in enumerate(lists):
        is_result_K = (rows_K >= 0) & ~np.isin(rows_K, list(out))
        scores_K, answered_K, rows_K = (values_K[is_result_K] for values_K in (scores_K, answered_K, rows_K))
        is_gold_K = np.isin(texts_N[rows_K], texts_N[np.asarray(list(golds), int)])
        rank_Q[query] = is_gold_K.argmax() + 1 if is_gold_K.any() else 0
        distinct = _distinct(texts_N, rows_K, ~is_gold_K)[: rule.last]
        reach = int(distinct[-1]) + 1 if len(distinct) == rule.last else len(rows_K)
        equal += reach - len(distinct) - int(np.isin(rows_K[:reach], list(golds)).sum())
        in_range = distinct[rule.first - 1 :]
        far = in_range[scores_K[in_range] <= _ceiling(scores_K[is_gold_K], rule)]
        unanswered = far[~answered_K[far]]
        left_Q[query] = len(unanswered)
        too_close += len(in_range) - len(far)
        answered += len(far) - len(unanswered)
        order = np.random.default_rng([*seed, start + query]).permutation(len(unanswered))
        drawn.append(rows_K[unanswered[np.sort(order[: rule.count])]])
    return Drawn(drawn, left_Q, rank_Q, too_close, answered, equal)


def _distinct(texts_N: np.ndarray, rows_K: np.ndarray, chosen_K: np.ndarray) -> np.ndarray:
    """Places in a list that are chosen, in order, the first of each text."""
    places = np.flatnonzero(chosen_K)
    _, firsts = np.unique(texts_N[rows_K[places]], return_index=True)
    return places[np.sort(firsts)]


def _ceiling(scores: np.ndarray, rule: Rule) -> float:
    """The highest score of a negative, for the scores of the positives in the list."""
    if not (rule.margin or rule.relative_margin):
        return np.inf
    best = scores.max(initial=-np.inf)
    return best - max(rule.margin, rule.relative_margin * abs(best)) if len(scores) else -np.inf
