"""The weight of one list in a sum of two, chosen by validation questions."""

from collections.abc import Callable, Sequence

import numpy as np

WEIGHTS = tuple(step / 20 for step in range(21))
FEWEST = 10  # questions by which a weight is chosen


def best_weight(fused: Callable[[float], np.ndarray], golds: Sequence[Sequence[int]]) -> float:
    """The smallest weight whose mean reciprocal rank lies within a standard error of the best.

    That is the rule of Breiman et al. 1984: of a dozen questions the best weight itself would be chance. The test
    questions have no say in it.

    Args:
      fused: gives the rows [Q, K] of the fused lists by the weight of the second one.
      golds: rows of each question's right candidates.
    """

    def reciprocal_ranks(weight: float) -> np.ndarray:
        hits_QK = np.stack([np.isin(rows, gold) for rows, gold in zip(fused(weight), golds)])
        return np.where(hits_QK.any(axis=1), 1 / (1 + hits_QK.argmax(axis=1)), 0)

    ranks_WQ = np.stack([reciprocal_ranks(weight) for weight in WEIGHTS])
    losses_WQ = ranks_WQ[ranks_WQ.mean(axis=1).argmax()] - ranks_WQ
    errors_W = losses_WQ.std(axis=1, ddof=1) / np.sqrt(len(golds))
    return WEIGHTS[int(np.argmax(losses_WQ.mean(axis=1) <= errors_W))]
