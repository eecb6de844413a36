"""The weight of the dense list in the hybrid, chosen by the validation questions of a set."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrieval.search import fusion
from retrieval.stages.rankings import others

WEIGHTS = tuple(step / 20 for step in range(21))
_FEWEST = 10  # questions by which a weight is chosen


class Validation(NamedTuple):
    """The validation questions of a set.

    Attributes:
      queries: id -> text.
      embeddings_QE: of the questions.
      golds: rows of each question's right candidates.
      own: id -> the row of the candidate that is the question itself.
      candidates: how many the set has.
    """

    queries: Mapping[str, str]
    embeddings_QE: np.ndarray
    golds: Sequence[Sequence[int]]
    own: Mapping[str, int]
    candidates: int


def choose(validation: Validation | None, words: Any, dense: Any, depth: int) -> tuple[float, int]:
    """The weight of the dense list, and how many validation questions chose it: 0 where it is the usual one.

    It is the smallest one whose mean reciprocal rank lies within a standard error of the best (the rule of Breiman et
    al. 1984): of a dozen questions the best one itself would be chance, and the smallest is the nearest to words alone.
    The test questions have no say in it.

    Args:
      words, dense: the two indexes.
    """
    if validation is None or len(validation.queries) < _FEWEST:
        return fusion.DENSE_WEIGHT, 0
    texts, depth = list(validation.queries.values()), min(depth, validation.candidates)
    deep = min(depth + bool(validation.own), validation.candidates)

    def without_itself(scores_QK: np.ndarray, rows_QK: np.ndarray) -> fusion.Run:
        return others(scores_QK, rows_QK, validation.queries, validation.own, depth)

    by_words = without_itself(*words.search(texts, deep))
    by_dense = without_itself(*dense.search(validation.embeddings_QE, deep))

    def reciprocal_ranks(weight: float) -> np.ndarray:
        _, rows_QK = fusion.hybrid(by_words, by_dense, weight, depth)
        hits_QK = np.stack([np.isin(rows, gold) for rows, gold in zip(rows_QK, validation.golds)])
        return np.where(hits_QK.any(axis=1), 1 / (1 + hits_QK.argmax(axis=1)), 0)

    ranks_WQ = np.stack([reciprocal_ranks(weight) for weight in WEIGHTS])
    losses_WQ = ranks_WQ[ranks_WQ.mean(axis=1).argmax()] - ranks_WQ
    errors_W = losses_WQ.std(axis=1, ddof=1) / np.sqrt(len(texts))
    return WEIGHTS[int(np.argmax(losses_WQ.mean(axis=1) <= errors_W))], len(texts)
