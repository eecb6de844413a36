"""Sparse vectors: a matrix of weights by term and passage, and products with sparse queries.

BM25's words and what a model makes of a text are searched alike. Shape letters: Q queries, V terms, N passages, K
results, T terms of a query.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse

from retrieval.search.exact import no_results

_FEW = 128  # queries that one thread answers
_BLOCK = 64  # passages, of which the best one is looked at first
_RARE = 64  # so many times as many passages as hits: an array of all of them takes longer than the hits
_HITS = 2**26  # a hit, a passage with a term of a query, takes about 16 bytes, any other 5: a GiB in all threads


class SparseIndex:
    """Weights [V, N] of passages; a score is the inner product with a query's."""

    def __init__(self, weights_VN: scipy.sparse.csr_array):
        self.weights: Any = weights_VN  # SciPy declares neither shapes nor products

    def __len__(self) -> int:
        return self.weights.shape[1]

    def search(self, queries_QV: scipy.sparse.csr_array, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The `k` best passages for each query, ties to the smaller row; only those with a score above 0.

        Many queries are shared out among threads: among fewer where they have many hits.
        """
        queries: Any = queries_QV
        scores_QK, rows_QK = no_results(queries.shape[0], k)

        def answer(query: int) -> None:
            terms = slice(queries.indptr[query], queries.indptr[query + 1])
            weights_TN, values = self.weights[queries.indices[terms]], queries.data[terms]
            hit = None
            if weights_TN.nnz * _RARE < len(self):  # the passages that are hit, alone
                hit, places = np.unique(weights_TN.indices, return_inverse=True)
                arrays = weights_TN.data, places.astype(weights_TN.indices.dtype), weights_TN.indptr
                weights_TN = scipy.sparse.csr_array(arrays, shape=(len(values), len(hit)))
            scores, rows = _best(weights_TN.T @ values, k)
            scores_QK[query, : len(rows)] = scores
            rows_QK[query, : len(rows)] = rows if hit is None else hit[rows]

        is_many = len(rows_QK) > _FEW
        hits = (queries.astype(bool).astype(np.int64) @ np.diff(self.weights.indptr)).max() if is_many else 0
        with ThreadPoolExecutor(min(os.cpu_count() or 1, max(1, _HITS // max(1, int(hits), len(self) // 3)))) as pool:
            list((pool.map if is_many else map)(answer, range(len(rows_QK))))
        return scores_QK, rows_QK


def _best(scores_N: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The best `k` scores above 0, and their rows."""
    whole = len(scores_N) // _BLOCK * _BLOCK
    best_of_blocks = scores_N[:whole].reshape(-1, _BLOCK).max(axis=1)
    # The k-th best score is no less than the k-th best of blocks.
    least = np.partition(best_of_blocks, -k)[-k] if len(best_of_blocks) >= k else 0
    rows = np.flatnonzero(scores_N >= least if least > 0 else scores_N > 0)
    scores = scores_N[rows]
    if len(scores) > k:
        possible = scores >= np.partition(scores, -k)[-k]  # the k-th best and all that tie with it
        scores, rows = scores[possible], rows[possible]
    order = np.lexsort((rows, -scores))[:k]
    return scores[order], rows[order]
