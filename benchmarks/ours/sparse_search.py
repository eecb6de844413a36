"""Exact search among sparse vectors, one query after another."""

from collections.abc import Mapping
from typing import Any

from benchmarks import worker
from benchmarks.measure import searched, timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: vectors (a folder with documents.npz and queries.npz of SciPy), exact (rows [Q, 10], .npy)."""
    import numpy as np

    from benchmarks.works import sparse_vectors
    from retrieval.search.sparse import SparseIndex

    documents_NV, queries_QV = sparse_vectors(settings["vectors"])
    exact = np.load(settings["exact"], allow_pickle=False).tolist()
    index, seconds = timed(lambda: SparseIndex(documents_NV.T.tocsr()))
    arrays, asked = index.weights, [queries_QV[[number]] for number in range(len(exact))]
    megabytes = sum(array.nbytes for array in (arrays.data, arrays.indices, arrays.indptr)) / 1e6
    numbers = {"index MB": megabytes, "seconds to build": seconds}
    return lambda: searched(lambda query: index.search(query, 10)[1][0].tolist(), asked, exact) | numbers


if __name__ == "__main__":
    worker.serve(prepare)
