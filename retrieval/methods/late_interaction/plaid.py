"""PLAID (Santhanam et al. 2022): centroids find the documents that MaxSim then ranks.

A query's token looks at the documents that have a token at one of its nearest centroids. The estimate of MaxSim is the
sum over the query's tokens of the best centroid at which a document was met. Where it was met at none, it counts as
much as the last of them, which is the most that is left (as in WARP, Scheerer et al. 2025). Those with the best
estimates are scored by MaxSim with the centroids of all their tokens.

Letters of shapes: T tokens of all documents, N documents, A tokens of a query, E size of a vector, P centroids, B
nearest ones of a token, X places of lists, C documents that were met.
"""

import numpy as np
import scipy.sparse

_SCORED = 4  # documents that are scored by their centroids for each result


class CentroidLists:
    """The documents of each centroid and the centroids of each document, in 4 bytes each. Threads may ask together.

    Attributes:
      centroids: float32 [P, E].
    """

    def __init__(self, codes_T: np.ndarray, sizes_N: np.ndarray, centroids_PE: np.ndarray):
        """Args:
        codes_T: the centroid of each token, document by document.
        sizes_N: tokens of each document.
        """
        self._codes, self._sizes, self.centroids = codes_T.astype(np.int32), sizes_N, centroids_PE
        owners_T = np.repeat(np.arange(len(sizes_N), dtype=np.int32), sizes_N)
        tokens = np.ones(len(codes_T), bool), (self._codes, owners_T)
        lists = scipy.sparse.csr_array(tokens, shape=(len(centroids_PE), len(sizes_N)))
        lists.sum_duplicates()
        self._documents, self._starts = lists.indices, lists.indptr
        self._begins = np.cumsum(sizes_N) - sizes_N

    @property
    def bytes(self) -> int:
        """Of the lists, and of the centroids of documents."""
        return self._documents.nbytes + self._starts.nbytes + self._codes.nbytes

    def candidates(self, vectors_AE: np.ndarray, probes: int, depth: int) -> np.ndarray:
        """The `depth` best documents by their centroids, of those at the `probes` nearest ones of a token."""
        scores_AP = vectors_AE @ self.centroids.T
        met_C = self._met(scores_AP, min(probes, len(self.centroids)), _SCORED * depth)
        sizes_C = self._sizes[met_C]
        firsts_C = np.cumsum(sizes_C) - sizes_C
        tokens = np.repeat(self._begins[met_C] - firsts_C, sizes_C) + np.arange(sizes_C.sum())
        of_tokens = np.take(scores_AP, self._codes[tokens], axis=1)
        scores_C = np.maximum.reduceat(of_tokens, firsts_C, axis=1).sum(axis=0)
        return met_C[np.argsort(-scores_C, kind="stable")[:depth]]

    def _met(self, scores_AP: np.ndarray, probes: int, most: int) -> np.ndarray:
        """The documents with the best estimates, `most` at most, ascending [C]."""
        nearest_AB = np.argpartition(scores_AP, -probes, axis=1)[:, -probes:]
        values_AB = np.take_along_axis(scores_AP, nearest_AB, axis=1)
        order = np.argsort(values_AB, axis=None)  # a document that is met at several has the best one written last
        lists = nearest_AB.reshape(-1)[order]
        starts, ends = self._starts[lists], self._starts[lists + 1]
        met_X = np.concatenate([self._documents[:0], *(self._documents[x:y] for x, y in zip(starts, ends))])
        is_met_N = np.zeros(len(self._sizes), bool)
        is_met_N[met_X] = True
        met_C = np.flatnonzero(is_met_N)
        place_N = np.zeros(len(self._sizes), np.int32)
        place_N[met_C] = np.arange(len(met_C))
        best_AC = np.repeat(values_AB.min(axis=1, keepdims=True), len(met_C), axis=1)
        tokens_X, values_X = (np.repeat(x, ends - starts) for x in (order // probes, values_AB.reshape(-1)[order]))
        best_AC[tokens_X, place_N[met_X]] = values_X
        return np.sort(met_C[np.argsort(-best_AC.sum(axis=0), kind="stable")[:most]])
