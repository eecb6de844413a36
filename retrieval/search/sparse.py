"""Sparse vectors: a matrix of weights by term and passage, and products with sparse queries.

BM25's words and what a model makes of a text are searched alike. Shape letters: Q queries, V terms, N passages, K
results.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse

from retrieval.search.exact import no_results

_BATCH = 128  # queries
_HITS = 2**26  # a hit, a passage with a term of a query, takes about 16 bytes: a GiB in all threads


class SparseIndex:
    """Weights [V, N] of passages; a score is the inner product with a query's."""

    def __init__(self, weights_VN: scipy.sparse.csr_array):
        self.weights: Any = weights_VN  # SciPy declares neither shapes nor products

    def __len__(self) -> int:
        return self.weights.shape[1]

    def search(self, queries_QV: scipy.sparse.csr_array, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The `k` best passages for each query, ties to the smaller row; only passages that share a term with it."""
        # Of the weights' type of indices: where types differ, SciPy copies those of all weights.
        kind, indices, ends = self.weights.indices.dtype, queries_QV.indices, queries_QV.indptr
        arrays = queries_QV.data, indices.astype(kind, copy=False), ends.astype(kind, copy=False)
        queries: Any = scipy.sparse.csr_array(arrays, shape=queries_QV.shape)
        scores_QK, rows_QK = no_results(queries.shape[0], k)
        for query, (scores, rows) in enumerate(self._results(queries, k)):
            scores_QK[query, : len(rows)], rows_QK[query, : len(rows)] = scores, rows
        return scores_QK, rows_QK

    def _results(self, queries: Any, k: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """`_best` of all queries, in batches and threads; of a few queries in this thread.

        Of many passages batches and threads are fewer: together they hold `_HITS` terms of passages.
        """
        hits_Q, count = self._hits(queries), queries.shape[0]
        threads = min(os.cpu_count() or 1, max(1, _HITS // max(1, *hits_Q))) if count > _BATCH else 1
        batches = _batches(hits_Q, _HITS // threads)
        if threads == 1:
            for batch in batches:
                yield from self._best(queries[batch], k)
            return
        with ThreadPoolExecutor(threads) as pool:
            for results in pool.map(lambda batch: list(self._best(queries[batch], k)), batches):
                yield from results

    def _hits(self, queries: Any) -> list[int]:
        """In how many passages the terms of each query are, added up."""
        starts, terms = self.weights.indptr, queries.indices.astype(np.int64)
        up_to = np.cumsum(np.append(0, starts[terms + 1].astype(np.int64) - starts[terms]))
        return np.diff(up_to[queries.indptr]).tolist()

    def _best(self, queries: Any, k: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Scores and rows of each query's best `k` passages."""
        sums = queries @ self.weights
        for start, end in zip(sums.indptr, sums.indptr[1:]):
            scores, rows = sums.data[start:end], sums.indices[start:end]
            if len(scores) > k:
                possible = scores >= np.partition(scores, -k)[-k]  # the k-th best and all that tie with it
                scores, rows = scores[possible], rows[possible]
            order = np.lexsort((rows, -scores))[:k]
            yield scores[order], rows[order]


def _batches(hits_Q: Sequence[int], most: int) -> list[slice]:
    """Queries in a row whose hits are no more than `most`, `_BATCH` of them at most; one at least."""
    batches, start, held = [], 0, 0
    for query, hits in enumerate(hits_Q):
        if query > start and (held + hits > most or query - start == _BATCH):
            batches.append(slice(start, query))
            start, held = query, 0
        held += hits
    return [*batches, slice(start, len(hits_Q))] if hits_Q else []
