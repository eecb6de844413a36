"""The stage `sparse`: sparse vectors of every set's candidates and queries, and an exact search among them.

sparse/SET/candidates-00003-of-00012.npz    weights [rows, V] in compressed rows
searched/sparse/SET.npz                     the lists, for `evaluate`
"""

import functools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from retrieval import files
from retrieval.config.fields import of_fields
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.methods.splade import json_vectors
from retrieval.methods.splade.trained import SPARSE_MODELS
from retrieval.methods.splade.weights import as_matrix, greatest
from retrieval.pipeline.records import details
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.recipes.encoder_sizes import longest_text
from retrieval.recipes.on_mesh import OnMesh
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.towers import candidate_windows, query_tokens
from retrieval.runtime import hosts, platforms
from retrieval.search.encoding import encode_rows
from retrieval.search.sharded_map import shard_paths, write_shards
from retrieval.search.sparse import SparseIndex
from retrieval.stages import searched
from retrieval.stages.collection import Collection, open_collection, set_names, train_unless
from retrieval.stages.rankings import Ranking, others

_log = logging.getLogger(__name__)

NAME, SYSTEM, MODEL = "sparse", "splade", "config.sparse.model"


def search_sparse(run: Run) -> dict[str, Any]:
    """Writes vectors and lists of every set; returns what was counted."""
    config, vocabulary, model = SPARSE_MODELS.load(run, run.config.sparse.model, MODEL)
    mesh, fields = local_mesh(config), run.config.sparse
    on_mesh, params = OnMesh(config, model, vocabulary.sep_id, mesh), parameters_of(model)
    step = None if run.config.sparse.model else (details(run, "train") or {}).get("step")

    def vectors_of(encode: Callable, terms: int) -> Callable[[Sequence[Sequence[int]]], scipy.sparse.csr_array]:
        embed = on_mesh.compiled(lambda model, text: greatest(encode(model, text), terms))(params)

        def vectors(rows: Sequence[Sequence[int]]) -> scipy.sparse.csr_array:
            made = encode_rows(rows, embed, config.encode.batch_tokens, longest_text(config), mesh.size)
            return as_matrix(made, len(vocabulary), fields.scale)

        return vectors

    documents = vectors_of(lambda model, text: model.encode_documents(text, None), fields.document_terms)
    queries = vectors_of(lambda model, text: model.encode_queries(text, None), fields.query_terms)

    def of_candidates(items: Sequence[Candidate]) -> scipy.sparse.csr_array:
        return documents([windows[0] for windows in candidate_windows(config, vocabulary, items)])

    counts = {}
    for name in set_names(run.sets):
        collection, folder = open_collection(run, name), run.folder / NAME / name
        paths = _write_candidates(collection, folder, fields.shard_size, of_candidates)
        asked = beir.read_queries(run.sets / name / "queries.jsonl")
        queries_QV = queries(query_tokens(config, vocabulary, list(asked.values())))
        search = functools.partial(_search, run, name, paths, queries_QV, step)
        counts[name] = hosts.on_first(search)
        for form in fields.vectors:
            both = (c.id for c in collection.candidates()), load(paths)
            write = functools.partial(json_vectors.write, folder, form, vocabulary.tokens, both, (asked, queries_QV))
            hosts.on_first(write)
    return counts


def _write_candidates(
    collection: Collection, folder: Path, shard_size: int, make: Callable[[Sequence[Candidate]], scipy.sparse.csr_array]
) -> list[Path]:
    """Writes the vectors of a collection, shard by shard; returns the files."""
    total = sum(1 for _ in collection.candidates())
    paths = shard_paths(folder, "candidates", ".npz", total, shard_size)
    folder.mkdir(parents=True, exist_ok=True)
    write_shards(paths, collection.candidates(), total, shard_size, make, _write)
    return paths


def _write(path: Path, matrix: Any) -> None:
    with files.atomic(path) as temporary, temporary.open("wb") as file:
        scipy.sparse.save_npz(file, matrix, compressed=False)


def load(paths: Sequence[Path]) -> scipy.sparse.csr_array:
    """The vectors [N, V] that the stage has written.

    Raises:
      UserError: a file is missing or damaged.
    """
    parts = []
    for path in paths:
        arrays = files.read_arrays(path, f"--stage={NAME} makes it again")
        rows = arrays["data"], arrays["indices"], arrays["indptr"]
        parts.append(scipy.sparse.csr_array(rows, shape=tuple(arrays["shape"].tolist())))
    whole: Any = scipy.sparse.vstack(parts, format="csr")
    return whole


def _search(run: Run, name: str, paths: Sequence[Path], queries_QV: Any, step: int | None) -> dict[str, Any]:
    """Writes the lists of a set; returns what is told of them."""
    value, weights_NV = beir.read_judged(run.sets / name), load(paths)
    counted: Any = weights_NV
    terms_N, terms_Q = np.diff(counted.indptr), np.diff(queries_QV.indptr)
    notes = {
        "terms of a passage": round(float(terms_N.mean()), 1),
        "terms of a query": round(float(terms_Q.mean()), 1),
        "bytes of a passage": round(8 * float(terms_N.mean())),
    }
    empty = {"passages without a term": int((terms_N == 0).sum()), "queries without a term": int((terms_Q == 0).sum())}
    for what, count in empty.items():
        if count:
            _log.warning("set %s: %d %s: they are never found, or find nothing", name, count, what)
    if not len(counted.data):
        raise UserError(
            f"set '{name}': no passage has a term of any weight: the model has collapsed; train it with smaller "
            "config.train.sparse.query_weight and document_weight, or a longer rise"
        )
    index: SparseIndex = SparseIndex(counted.T.tocsr())
    depth = run.config.evaluate.depth
    began = time.perf_counter()
    scores_QK, rows_QK = index.search(queries_QV, min(depth + bool(value.own), len(value.candidates)))
    seconds = time.perf_counter() - began
    notes |= {what: count for what, count in empty.items() if count}
    lists = others(scores_QK, rows_QK, value.queries, value.own, depth)
    searched.write(run.folder / searched.folder_of(NAME), name, Ranking(SYSTEM, *lists, seconds, step, notes=notes))
    return notes


def read(model: str) -> list[str | Read]:
    """What the stage reads: texts, and the run's own model where `model` names none."""
    return [Read("sets", required=True, same=True), "prepare", *train_unless(model)]


STAGES.register(
    NAME,
    Stage(
        search_sparse,
        check=(lambda run: SPARSE_MODELS.check(run, run.config.sparse.model, MODEL), platforms.check),
        fields=("sparse", "evaluate.depth", "data.query_length", "data.document_length", "model.dtype"),
        uses=("encode.batch_tokens",),
        reads=of_fields(read, "sparse.model"),
        files=lambda run: SPARSE_MODELS.inputs(run, run.config.sparse.model, MODEL),
        fetch=lambda run: SPARSE_MODELS.fetch(run, run.config.sparse.model, MODEL),
        writes=(NAME, searched.folder_of(NAME)),
        everywhere=True,
    ),
)
