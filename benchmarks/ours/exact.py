"""Our exact search on random embeddings; queries a second."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import worker
from benchmarks.measure import timed
from retrieval.search.exact import ExactIndex


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: rows, dimensions, queries, k."""
    generator = np.random.default_rng(0)
    sizes = settings["rows"], settings["queries"]
    candidates_NE, queries_QE = (generator.standard_normal((n, settings["dimensions"]), np.float32) for n in sizes)
    index = ExactIndex(candidates_NE)
    return lambda: {"queries/s": len(queries_QE) / timed(lambda: index.search(queries_QE, settings["k"]))[1]}


if __name__ == "__main__":
    worker.serve(prepare)
