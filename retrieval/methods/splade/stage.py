"""The stage `sparse`: sparse vectors of every set's candidates and queries, and an exact search among them.

Those of the passages of the corpus are made too, for searches of one's own.

sparse/SET/candidates-00003-of-00012.npz    weights [rows, V] in compressed rows
searched/sparse/SET.npz                     the lists, for `evaluate`
"""

import functools
import logging
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts
from retrieval.data.sets import beir
from retrieval.methods.splade import sparse_store
from retrieval.methods.splade.term_encoder import TermEncoder
from retrieval.methods.splade.trained import MODEL, NAME, SPARSE_MODELS, SYSTEM
from retrieval.runs.fitting import encoding_cost
from retrieval.runs.pipeline.records import details
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.ranking import costs, ranked_lists
from retrieval.runs.ranking.collection import CORPUS, collections
from retrieval.runs.ranking.ranked_lists import Ranking
from retrieval.stages import encode

_log = logging.getLogger(__name__)

_PASSAGES = 16_384  # of a shard at most


def search_sparse(run: Run) -> dict[str, Any]:
    """Writes vectors and lists of every set; returns what was counted."""
    encoder, counts = SPARSE_MODELS.open(run, run.config.sparse.model, MODEL), {}
    for collection in collections(run):
        folder = run.folder / NAME / collection.name
        sparse_store.write(folder, collection, min(run.config.encode.shard_size, _PASSAGES), encoder.encode_document)
        if collection.name == CORPUS:
            continue
        texts = list(beir.read_queries(run.sets / collection.name / "queries.jsonl").values())
        total = sum(1 for _ in collection.candidates())
        operations = encoding_cost.of_set(encoder.config, encoder.vocabulary, texts, collection.candidates(), total)
        args = run, encoder, collection.name, encoder.encode_query(texts), operations
        counts[collection.name] = hosts.on_first(functools.partial(_write_lists, *args))
    return counts


def _write_lists(
    run: Run, encoder: TermEncoder, name: str, queries_QV: Any, operations: Mapping[str, float]
) -> dict[str, Any]:
    """Searches a set, and writes its lists; returns what is told of them, with the operations to encode texts."""
    value, depth = beir.read_judged(run.sets / name), run.config.evaluate.depth
    documents_NV = sparse_store.load(run.folder / NAME / name, len(value.candidates))
    terms_N, terms_Q = np.diff(documents_NV.indptr), np.diff(queries_QV.indptr)
    notes = {
        "terms of a passage": round(float(terms_N.mean()), 1),
        "terms of a query": round(float(terms_Q.mean()), 1),
        costs.BYTES: round(8 * float(terms_N.mean()), 1),
        **operations,
    }
    for what, terms in (("passages without a term", terms_N), ("queries without a term", terms_Q)):
        if count := int((terms == 0).sum()):
            notes[what] = count
            _log.warning("set %s: %d %s: they are never found, or find nothing", name, count, what)
    if not terms_N.any():
        way = "train it with smaller config.train.sparse.query_weight and document_weight, or a longer rise"
        raise UserError(f"set '{name}': no passage has a term of any weight: the model has collapsed; {way}")
    search = encoder.over(documents_NV)
    began = time.perf_counter()
    lists = search(queries_QV, min(depth + bool(value.own), len(value.candidates)))
    seconds = time.perf_counter() - began
    step = None if run.config.sparse.model else (details(run, "train") or {}).get("step")
    ranking = Ranking(SYSTEM, *lists, seconds, step, notes=notes).first(value, depth)
    ranked_lists.write_searched(run, NAME, name, ranking)
    return notes


_FIELDS = (
    *("sparse", "evaluate.depth", "data.query_length", "data.document_length"),
    *("model.dtype", "encode.corpus", "encode.shard_size"),
)
_WRITES = NAME, ranked_lists.searched_folder(NAME)
_SHARED = encode.over_texts(SPARSE_MODELS, "sparse.model")
STAGES.register(NAME, Stage(search_sparse, fields=_FIELDS, writes=_WRITES, **_SHARED))
