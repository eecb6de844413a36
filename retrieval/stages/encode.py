"""The stage `encode`: texts to embeddings."""

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.data.sets import beir
from retrieval.errors import UserError
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.recipes import held_out_questions, initial_parameters
from retrieval.recipes.encoder_sizes import longest_text
from retrieval.recipes.initial_parameters import TEXT_FIELDS, check_towers, load_towers, of_towers
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.towers import Embedder, candidate_windows, query_tokens, towers_of
from retrieval.runtime import platforms
from retrieval.search import encoding
from retrieval.stages.collection import (
    BASELINES,
    CORPUS,
    START,
    TRAINED,
    UNTRAINED,
    collections,
    of_pairs,
    repeated,
)

_log = logging.getLogger(__name__)


def encode(run: Run) -> dict[str, Any]:
    """Writes the embeddings of every set, and of the corpus, by the trained towers and by the baselines."""
    vocabulary = run.load_vocabulary()
    config = of_towers(run)
    mesh = local_mesh(config)  # every host has shards of its own
    embedder = Embedder(config, vocabulary, mesh)

    def rows_of(texts: Sequence[str]) -> list[list[list[int]]]:
        return [[ids] for ids in query_tokens(config, vocabulary, texts)]

    windows_of = functools.partial(candidate_windows, config, vocabulary)
    items, counts = collections(run), {}
    same = repeated(items)
    systems = {TRAINED: lambda: load_towers(run, len(vocabulary))}
    if run.config.encode.untrained:
        systems[UNTRAINED] = lambda: towers_of(config, len(vocabulary))
    if run.config.encode.start:
        systems[START] = lambda: initial_parameters.load_start(run, config, len(vocabulary))
    sizes = {"shard_size": config.encode.shard_size, "batch_tokens": config.encode.batch_tokens}
    options = {**sizes, "longest": longest_text(config), "multiple": mesh.size}

    def write_queries(folder: Path, kind: str, queries: Mapping[str, str], embed: encoding.Embed) -> None:
        encoding.encode(folder, kind, queries.items(), len(queries), rows_of, embed, **options)

    for system, towers in systems.items():
        params = parameters_of(towers())
        for collection in items:
            name, folder = collection.name, collection.embeddings(system)
            if name == CORPUS and system in BASELINES:
                continue
            if name != CORPUS:
                queries = beir.read_queries(run.sets / name / "queries.jsonl")
                write_queries(folder, "queries", queries, embedder.queries(params))
            if system == TRAINED and name == held_out_questions.split_set(run):
                write_queries(folder, "validation", held_out_questions.validation(run)[0], embedder.queries(params))
            counts[f"{name}, {system}"] = total = sum(1 for _ in collection.candidates())
            if first := same.get(name):
                _log.info("%s has the candidates of %s: embeddings are copied", name, first.name)
                encoding.copy(first.embeddings(system), folder, "candidates", total, config.encode.shard_size)
            else:  # they are read as they are encoded: a collection may be larger than the memory
                texts = ((item.id, item) for item in collection.candidates())
                documents = embedder.documents(params)
                encoding.encode(folder, "candidates", texts, total, windows_of, documents, **options)
    return counts


def check_start(run: Run) -> None:
    """Checks that the towers before training can be encoded, where they are asked for.

    Raises:
      UserError: training does not start from any, or they have changed.
    """
    if run.config.encode.start:
        trained = run.holder("train")
        if not trained.config.train.init_from:
            raise UserError(
                "config.encode.start=True evaluates what config.train.init_from names, and that names none: set one of "
                "the two"
            )
        initial_parameters.check_start(trained)


def fetch(run: Run) -> None:
    """Copies down the towers before training, where they are asked for and on a store."""
    if run.config.encode.start:
        initial_parameters.fetch_start(run.holder("train"))


STAGES.register(
    "encode",
    Stage(
        encode,
        check=(
            Run.check_vocabulary,
            check_towers,
            check_start,
            platforms.check,
        ),
        fields=("seed", "encode", "model", *(f"data.{name}" for name in TEXT_FIELDS), "loop.validate_queries"),
        reads=lambda config: ("prepare", "sets", Read("train", required=True), *of_pairs(config)),
        files=Run.vocabulary_inputs,
        fetch=fetch,
        writes=("embeddings",),
        everywhere=True,
    ),
)
