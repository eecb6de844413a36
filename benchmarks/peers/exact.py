"""FAISS's exact search on the same random embeddings as ours; queries a second."""

import os
from collections.abc import Mapping
from typing import Any

from benchmarks import worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: rows, dimensions, queries, k."""
    import faiss
    import numpy as np

    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    generator = np.random.default_rng(0)
    sizes = settings["rows"], settings["queries"]
    candidates_NE, queries_QE = (generator.standard_normal((n, settings["dimensions"]), np.float32) for n in sizes)
    index = faiss.IndexFlatIP(settings["dimensions"])
    index.add(candidates_NE)
    return lambda: {"queries/s": len(queries_QE) / timed(lambda: index.search(queries_QE, settings["k"]))[1]}


if __name__ == "__main__":
    worker.serve(prepare)
