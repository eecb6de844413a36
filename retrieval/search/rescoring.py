"""Results of an index scored again: by the inner product of the query with embeddings that are finer than its codes.

Shape letters: Q queries, B of them at a time, E dimensions, X results that are scored again, K results, M rows.
"""

from collections.abc import Callable

import numpy as np

from retrieval.errors import UserError
from retrieval.search import index_shards
from retrieval.search.exact import no_results
from retrieval.search.windows import Index

_ROWS = 32_768  # that are read at a time, at least those of one query


class Rescored:
    """An index whose results come in the order of exact scores."""

    def __init__(self, index: Index, take: Callable[[np.ndarray], np.ndarray], multiplier: int):
        """Args:
        take: rows [M] to embeddings [M, E].
        multiplier: results of the index that are scored again, for each that is wanted.
        """
        self._index, self._take, self._multiplier = index, take, multiplier

    def search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The best `k` of the index's first `multiplier` x `k`, ties to the smaller row.

        Returns:
          scores [Q, k] float32, best first, and rows [Q, k] int32; -inf and -1 where fewer were found.
        """
        _, rows_QX = self._index.search(queries_QE, k * self._multiplier)
        found = [no_results(0, k)]
        step = max(1, _ROWS // rows_QX.shape[1])
        for start in range(0, len(rows_QX), step):
            part = slice(start, start + step)
            scores_BX = self._scores(np.asarray(queries_QE[part], np.float32), rows_QX[part])
            found.append(index_shards.merge([(scores_BX, rows_QX[part])], len(scores_BX), k))
        scores, rows = zip(*found)
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
