"""PLAID (Santhanam et al. 2022): centroids find the documents that MaxSim then ranks.

A query's token looks at the documents that have a token at one of its nearest centroids. The estimate of MaxSim is the
sum over the query's tokens of the best centroid at which a document was met. Where it was met at none, it counts as
much as the last of them, which is the most that is left (as in WARP, Scheerer et al. 2025).

Letters of shapes: T tokens of all documents, N documents, A tokens of a query, E size of a vector, P centroids, B
nearest ones of a token, X places of lists, C documents that were met.
"""

import numpy as np


class CentroidLists:
    """The documents of each centroid, 4 bytes for each. Threads may ask together."""

    def __init__(self, codes_T: np.ndarray, sizes_N: np.ndarray, centroids_PE: np.ndarray):
        """Args:
        codes_T: the centroid of each token, document by document.
        sizes_N: tokens of each document.
        """
        count, owners_T = len(sizes_N), np.repeat(np.arange(len(sizes_N)), sizes_N)
        pairs = np.unique(codes_T.astype(np.int64) * count + owners_T)
        self._documents, self._centroids_PE = (pairs % max(1, count)).astype(np.int32), centroids_PE
        self._sizes_P = np.bincount(pairs // max(1, count), minlength=len(centroids_PE))
        self._starts_P, self._count = np.cumsum(self._sizes_P) - self._sizes_P, count

    @property
    def bytes(self) -> int:
        """Of the lists."""
        return self._documents.nbytes

    def candidates(self, vectors_AE: np.ndarray, probes: int, depth: int) -> np.ndarray:
        """The documents with the best estimates, [depth], -1 where there are fewer.

        Args:
          probes: centroids of a token.
        """
        rows_K, P = np.full(depth, -1), len(self._centroids_PE)
        probes = min(probes, P)
        scores_AP = vectors_AE @ self._centroids_PE.T
        nearest_AB = np.argpartition(scores_AP, P - probes, axis=1)[:, P - probes :]
        values_AB = np.take_along_axis(scores_AP, nearest_AB, axis=1)
        order = np.argsort(values_AB, axis=None)  # a document that is met at several has the best one written last
        lists = nearest_AB.reshape(-1)[order]
        starts, sizes = self._starts_P[lists], self._sizes_P[lists]
        met_X = np.concatenate([self._documents[:0], *(self._documents[x : x + n] for x, n in zip(starts, sizes))])
        is_met_N = np.zeros(self._count, bool)
        is_met_N[met_X] = True
        met_C = np.flatnonzero(is_met_N)
        place_N = np.zeros(self._count, np.int32)
        place_N[met_C] = np.arange(len(met_C))
        best_AC = np.repeat(values_AB.min(axis=1, keepdims=True), len(met_C), axis=1)
        best_AC[np.repeat(order // probes, sizes), place_N[met_X]] = np.repeat(values_AB.reshape(-1)[order], sizes)
        best_K = np.argsort(-best_AC.sum(axis=0), kind="stable")[:depth]
        rows_K[: len(best_K)] = met_C[best_K]
        return rows_K
