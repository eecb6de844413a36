"""Search on the device: exact among embeddings and among codes of a byte, and MaxSim; random vectors."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.accelerator.work import Attempt, Given
from benchmarks.measure import timed
from benchmarks.ours import training
from retrieval.methods.late_interaction import maxsim_search as late
from retrieval.methods.late_interaction.token_encoder import Queries
from retrieval.search.exact import ExactIndex, recall
from retrieval.search.vector_codes import FLOAT32, Form, ranges_of

SIZES = dict(rows=1_000_000, dimensions=128, queries=2048, k=100, documents=8192, tokens=128, query_tokens=32)
TOY_SIZES = dict(rows=2000, dimensions=16, queries=8, k=10, documents=32, tokens=12, query_tokens=4)
_TURNS = 3


def attempts(given: Given) -> Iterator[Attempt]:
    """Exact search in each precision, and MaxSim among all documents."""
    sizes = TOY_SIZES if given.is_toy else SIZES
    given.open(sizes)
    for precision in (FLOAT32, "int8"):
        yield Attempt(f"exact, {precision}", lambda precision=precision: _exact(precision, sizes))
    yield Attempt("MaxSim", lambda: _maxsim(sizes))


def _exact(precision: str, sizes: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    rng, E = np.random.default_rng(0), sizes["dimensions"]
    candidates_NE, queries_QE = (rng.standard_normal((sizes[name], E), np.float32) for name in ("rows", "queries"))
    form = Form(precision, E)
    if form.needs_ranges:
        form = form.calibrated(ranges_of(candidates_NE))
    stored_NS = form.encode(candidates_NE)
    index = ExactIndex(stored_NS, form=form)
    k = sizes["k"]
    yield from _turns(lambda: index.search(queries_QE, k), sizes["queries"])
    index.search(queries_QE[:1], k)  # compiles
    yield {"ms for one query": 1000 * min(timed(lambda: index.search(queries_QE[:1], k))[1] for _ in range(_TURNS))}
    few = queries_QE[:8]
    scores_QN = few.astype(np.float64) @ candidates_NE.T
    true_QK = np.argsort(-scores_QN, axis=1, kind="stable")[:, :k]
    yield {"recall of float64's": recall(true_QK, index.search(few, k)[1])}
    yield {"MB of the device": training.peak_device_mb()}


def _maxsim(sizes: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    rng, E = np.random.default_rng(0), sizes["dimensions"]
    count = min(64, sizes["queries"])
    vectors_QAE = _unit(rng.standard_normal((count, sizes["query_tokens"], E), np.float32))
    queries = Queries(vectors_QAE, np.ones(vectors_QAE.shape[:2], bool))
    documents_NLE = _unit(rng.standard_normal((sizes["documents"], sizes["tokens"], E), np.float32))
    yield from _turns(lambda: late.ranked(queries, late.InMemory(documents_NLE), sizes["tokens"], sizes["k"]), count)
    yield {"MB of the device": training.peak_device_mb()}


def _turns(search: Callable[[], Any], queries: int) -> Iterator[dict[str, Any]]:
    """The best turn so far; the one before compiles."""
    began = time.monotonic()
    search()
    yield {"seconds until warm": round(time.monotonic() - began, 1)}
    best = float("inf")
    for number in range(_TURNS):
        best = min(best, timed(search)[1])
        yield {"queries/s": queries / best, "turns": number + 1}


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
