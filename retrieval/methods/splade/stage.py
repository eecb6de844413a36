"""The stage `sparse`: sparse vectors of every set's candidates and queries, and an exact search among them.

Those of the passages of the corpus are made too, for searches of one's own.

sparse/SET/candidates-00003-of-00012.npz    weights [rows, V] in compressed rows
searched/sparse/SET.npz                     the lists, for `evaluate`
"""

import functools
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts
from retrieval.data.sets import beir
from retrieval.methods.splade import json_vectors, sparse_store
from retrieval.methods.splade.term_encoder import TermEncoder
from retrieval.methods.splade.trained import MODEL, NAME, SPARSE_MODELS, SYSTEM
from retrieval.runs.fitting import encoding_cost
from retrieval.runs.pipeline.records import details
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.ranking import costs, ranked_lists
from retrieval.runs.ranking.collection import CORPUS, Collection, collections
from retrieval.runs.ranking.ranked_lists import Ranking
from retrieval.stages import encode

_log = logging.getLogger(__name__)

_PASSAGES = 16_384  # of a shard at most


def search_sparse(run: Run) -> dict[str, Any]:
    """Writes vectors and lists of every set; returns what was counted."""
    encoder, counts = SPARSE_MODELS.open(run, run.config.sparse.model, MODEL), {}
    for collection in collections(run):
        folder = run.folder / NAME / collection.name
        sparse_store.write(folder, collection, min(run.config.encode.shard_size, _PASSAGES), encoder.encode_documents)
        if collection.name != CORPUS:
            counts[collection.name] = _search(run, encoder, collection, folder)
    return counts


def _search(run: Run, encoder: TermEncoder, collection: Collection, folder: Path) -> dict[str, Any]:
    """Writes the lists of a set, and its vectors for other systems; returns what is told of the set."""
    queries = beir.read_queries(run.sets / collection.name / "queries.jsonl")
    queries_QV, total = encoder.encode_queries(list(queries.values())), sum(1 for _ in collection.candidates())
    some = encoding_cost.some(queries.values(), len(queries)), encoding_cost.some(collection.candidates(), total)
    operations = encoder.operations(*some)
    summary = hosts.on_first(functools.partial(_write_lists, run, encoder, collection.name, queries_QV, operations))
    for form in run.config.sparse.vectors:
        both = (each.id for each in collection.candidates()), sparse_store.load(folder, total)
        write = functools.partial(json_vectors.write, folder, form, encoder.vocabulary.tokens, both)
        hosts.on_first(functools.partial(write, (queries, queries_QV)))
    return summary


def _write_lists(
    run: Run, encoder: TermEncoder, name: str, queries_QV: Any, operations: Mapping[str, float]
) -> dict[str, Any]:
    """Searches a set, and writes its lists; returns what is told of them, with the operations to encode texts."""
    value = beir.read_judged(run.sets / name)
    documents_NV = sparse_store.load(run.folder / NAME / name, len(value.candidates))
    terms_N, terms_Q = map(sparse_store.lengths, (documents_NV, queries_QV))
    notes = {
        "terms of a passage": round(float(terms_N.mean()), 1),
        "terms of a query": round(float(terms_Q.mean()), 1),
        costs.BYTES: round(8 * float(terms_N.mean()), 1),
        **operations,
    }
    empty = {"passages without a term": int((terms_N == 0).sum()), "queries without a term": int((terms_Q == 0).sum())}
    for what, count in empty.items():
        if count:
            _log.warning("set %s: %d %s: they are never found, or find nothing", name, count, what)
    if not terms_N.any():
        raise UserError(
            f"set '{name}': no passage has a term of any weight: the model has collapsed; train it with smaller "
            "config.train.sparse.query_weight and document_weight, or a longer rise"
        )
    search, depth = encoder.over(documents_NV), run.config.evaluate.depth
    began = time.perf_counter()
    lists = search(queries_QV, min(depth + bool(value.own), len(value.candidates)))
    seconds = time.perf_counter() - began
    notes |= {what: count for what, count in empty.items() if count}
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
