"""Hard negatives out of ranked lists: what an index ranks high for a query, and what is no answer to it.

Any index serves: BM25 (Karpukhin et al. 2020, section 3.2) or the embeddings of the model that is trained (Xiong et al.
2021, ANCE). With `relative_margin=0.05, top=True` the rule is TopK-PercPos of 95 %, with `margin=0.05, top=True` it is
TopK-MarginPos (Moreira et al. 2024, NV-Retriever). Shape letters: Q queries, K results, N candidates.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from retrieval.common.runtime import hashing


class Rule(NamedTuple):
    """Which of a query's results are its negatives.

    Attributes:
      count: how many are drawn from those that the rest leaves.
      first, last: their ranks, from 1 on, when the positives have been taken out of the list.
      margin: how much lower than a positive they score at least, s <= p - margin; None for any score.
      relative_margin: the same as a share of that positive's score, s <= p - share * |p|. As p * (1 - share) it would
        be wrong for a score below 0.
      top: whether the best are taken; otherwise they are drawn at random.
    """

    count: int
    first: int
    last: int
    margin: float | None = None
    relative_margin: float | None = None
    top: bool = False


class Drawn(NamedTuple):
    """What was found for some queries.

    Attributes:
      rows: of each query, the candidates drawn, best first; at most `Rule.count`.
      left_Q: how many there were to draw from.
      rank_Q: of the best positive in the whole list without the query itself, from 1 on; 0 where it has none.
      too_close: results of all queries, in the range of ranks, that the margins left out.
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
    compared_Q: np.ndarray | None = None,
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
      compared_Q: the score of the positive that margins are to; by default that of the best one in the list.
    """
    drawn, left_Q, rank_Q = [], np.zeros(len(rows_QK), int), np.zeros(len(rows_QK), int)
    too_close = answered = equal = 0
    answered_QK = np.zeros(rows_QK.shape, bool) if answered_QK is None else answered_QK
    lists = zip(scores_QK, rows_QK, answered_QK, positives, others, strict=True)
    for query, (scores_K, rows_K, answered_K, golds, out) in enumerate(lists):
        is_result_K = (rows_K >= 0) & ~np.isin(rows_K, list(out))
        scores_K, answered_K, rows_K = (values_K[is_result_K] for values_K in (scores_K, answered_K, rows_K))
        is_gold_K = np.isin(texts_N[rows_K], texts_N[np.asarray(list(golds), int)])
        rank_Q[query] = is_gold_K.argmax() + 1 if is_gold_K.any() else 0
        others_K = np.flatnonzero(~is_gold_K)
        firsts = np.unique(texts_N[rows_K[others_K]], return_index=True)[1]
        distinct = others_K[np.sort(firsts)]  # the first of each text
        ranked = distinct[: rule.last]
        end = int(ranked[-1]) + 1 if len(ranked) == rule.last else len(rows_K)
        equal += end - int((distinct < end).sum()) - int(np.isin(rows_K[:end], list(golds)).sum())
        compared = scores_K[is_gold_K].max(initial=-np.inf) if compared_Q is None else compared_Q[query]
        in_range = ranked[rule.first - 1 :]
        far = in_range[scores_K[in_range] <= _ceiling(float(compared), rule)]
        unanswered = far[~answered_K[far]]
        left_Q[query] = len(unanswered)
        too_close += len(in_range) - len(far)
        answered += len(far) - len(unanswered)
        chosen = unanswered[: rule.count]
        if not rule.top:
            order = np.random.default_rng([*seed, start + query]).permutation(len(unanswered))
            chosen = unanswered[np.sort(order[: rule.count])]
        drawn.append(rows_K[chosen])
    return Drawn(drawn, left_Q, rank_Q, too_close, answered, equal)


def at_random(candidates: int, seed: int) -> Callable[[Sequence[str], int], tuple[np.ndarray, np.ndarray]]:
    """A search that draws candidates by chance: others for each query, the same for the same query and seed.

    Scores are -1, -2 and so on.
    """

    def search(queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        randoms = (np.random.default_rng(hashing.number(f"{seed} {query}")) for query in queries)
        rows_QK = np.stack([random.choice(candidates, min(k, candidates), replace=False) for random in randoms])
        return np.broadcast_to(-np.arange(1, rows_QK.shape[1] + 1, dtype=np.float32), rows_QK.shape), rows_QK

    return search


def _ceiling(compared: float, rule: Rule) -> float:
    """The highest score of a negative, for that of the positive that it is compared with; -inf where there is none."""
    margins = [rule.margin, None if rule.relative_margin is None else rule.relative_margin * abs(compared)]
    return min((compared - margin for margin in margins if margin is not None), default=np.inf)
