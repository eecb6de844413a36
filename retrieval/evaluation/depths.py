"""What a first stage gives to a reranker at different depths (Zhan et al. 2020, section 4.4).

A run is scores [Q, K] and rows [Q, K], best first, row -1 where there is no result, as a search gives it.
"""

from collections.abc import Sequence

import numpy as np

from retrieval.common.errors import UserError
from retrieval.evaluation import metrics


def reranked(scores_QK: np.ndarray, rows_QK: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `depth` results of each query, by new scores; what is below is dropped. Ties keep their order.

    Args:
      scores_QK: the reranker's, of the results in `rows_QK`; what stands beside a row of -1 is not looked at.
      rows_QK: of the first stage, best first.

    Returns:
      The run of the reranker, [Q, depth].

    Raises:
      UserError: the first stage found no list that is so long.
    """
    _check(rows_QK, [depth])
    scores_QD, rows_QD = scores_QK[:, :depth], rows_QK[:, :depth]
    scores_QD = np.where(rows_QD < 0, -np.inf, scores_QD)
    if np.isnan(scores_QD).any():
        raise ValueError("a reranker's score is NaN")
    order_QD = np.argsort(-scores_QD, axis=1, kind="stable")
    return np.take_along_axis(scores_QD, order_QD, axis=1), np.take_along_axis(rows_QD, order_QD, axis=1)


def by_depth(
    scores_QK: np.ndarray,
    rows_QK: np.ndarray,
    depths: Sequence[int],
    query_ids: Sequence[str],
    candidate_ids: Sequence[str],
    qrels: metrics.Qrels,
    measures: Sequence[str] = ("RR@10",),
) -> dict[int, dict[str, float]]:
    """Recall of the first stage and the reranker's metrics, for each depth n that is reranked (Table 2, Figure 1).

    Recall is 'R@n', and the same before and after: the n results are the same.

    Args:
      scores_QK, rows_QK: as `reranked` takes them; with the first stage's own scores they are its own metrics.
      query_ids, candidate_ids, qrels, measures: as `metrics.evaluate` takes them.
    """
    lists = {depth: reranked(scores_QK, rows_QK, depth)[1] for depth in depths}
    names = {depth: [f"R@{depth}", *measures] for depth in depths}
    return {n: metrics.evaluate(lists[n], query_ids, candidate_ids, qrels, names[n]) for n in depths}


def consistency_factor(rows_QK: np.ndarray, reference_QM: np.ndarray, depths: Sequence[int]) -> dict[int, float]:
    """The share of a run's first n results that another run found too, for each depth n (equation 5).

    The other run is the one that the reranker's negatives were drawn from; the paper takes its first 1,000. A query
    with fewer than n results counts as if the rest were not in the other run.

    Args:
      rows_QK, reference_QM: of the same queries, among the same candidates.

    Raises:
      UserError: the run has no list that is so long.
    """
    if len(rows_QK) != len(reference_QM):
        raise ValueError(f"runs of {len(rows_QK)} and {len(reference_QM)} queries: they must have the same")
    _check(rows_QK, depths)
    shared_QK = np.array([np.isin(rows, reference[reference >= 0]) for rows, reference in zip(rows_QK, reference_QM)])
    return {depth: float(shared_QK[:, :depth].sum(axis=1).mean() / depth) for depth in depths}


def _check(rows_QK: np.ndarray, depths: Sequence[int]) -> None:
    longest = rows_QK.shape[1]
    wrong = [depth for depth in depths if not 1 <= depth <= longest]
    if wrong:
        raise UserError(f"depth {wrong[0]}: the run has lists of at most {longest} results; take 1 to {longest}")
