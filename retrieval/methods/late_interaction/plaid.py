"""PLAID (Santhanam et al. 2022): centroids find the documents that MaxSim then ranks.

A query's token looks at the documents that have a token at one of its nearest centroids. The estimate of MaxSim is the
sum over the query's tokens of the best centroid at which a document was met. Where it was met at none, it counts as
much as the last of them, which is the most that is left (as in WARP, Scheerer et al. 2025).

Letters of shapes: T tokens of all documents, N documents, A tokens of a query, E size of a vector, P centroids, B
nearest ones of a token, X places of lists, C documents that were met.
"""

import numpy as np
import scipy.sparse


class CentroidLists:
    """The documents of each centroid, in 4 bytes for each. Threads may ask together.

    Attributes:
      centroids: float32 [P, E].
    """

    def __init__(self, codes_T: np.ndarray, sizes_N: np.ndarray, centroids_PE: np.ndarray):
        """Args:
        codes_T: the centroid of each token, document by document.
        sizes_N: tokens of each document.
        """
        owners_T = np.repeat(np.arange(len(sizes_N), dtype=np.int32), sizes_N)
        tokens = np.ones(len(codes_T), bool), (codes_T.astype(np.int32), owners_T)
        lists = scipy.sparse.csr_array(tokens, shape=(len(centroids_PE), len(sizes_N)))
        lists.sum_duplicates()
        self._documents, self._starts = lists.indices, lists.indptr
        self._count, self.centroids = len(sizes_N), centroids_PE

    @property
    def bytes(self) -> int:
        """Of the lists."""
        return self._documents.nbytes + self._starts.nbytes

    def candidates(self, vectors_AE: np.ndarray, probes: int, depth: int) -> np.ndarray:
        """The documents with the best estimates, [depth], -1 where there are fewer.

        Args:
          probes: centroids of a token.
        """
        rows_K, P = np.full(depth, -1), len(self.centroids)
        probes = min(probes, P)
        scores_AP = vectors_AE @ self.centroids.T
        nearest_AB = np.argpartition(scores_AP, P - probes, axis=1)[:, P - probes :]
        values_AB = np.take_along_axis(scores_AP, nearest_AB, axis=1)
        order = np.argsort(values_AB, axis=None)  # a document that is met at several has the best one written last
        lists = nearest_AB.reshape(-1)[order]
        starts, ends = self._starts[lists], self._starts[lists + 1]
        met_X = np.concatenate([self._documents[:0], *(self._documents[x:y] for x, y in zip(starts, ends))])
        is_met_N = np.zeros(self._count, bool)
        is_met_N[met_X] = True
        met_C = np.flatnonzero(is_met_N)
        place_N = np.zeros(self._count, np.int32)
        place_N[met_C] = np.arange(len(met_C))
        best_AC = np.repeat(values_AB.min(axis=1, keepdims=True), len(met_C), axis=1)
        tokens_X, values_X = (np.repeat(x, ends - starts) for x in (order // probes, values_AB.reshape(-1)[order]))
        best_AC[tokens_X, place_N[met_X]] = values_X
        best_K = np.argsort(-best_AC.sum(axis=0), kind="stable")[:depth]
        rows_K[: len(best_K)] = met_C[best_K]
        return rows_K
