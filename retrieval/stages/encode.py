"""The stage `encode`: texts to embeddings."""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from retrieval.data.sets import beir
from retrieval.errors import UserError
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes import examples, initial_parameters
from retrieval.recipes.encoder_sizes import longest_text
from retrieval.recipes.initial_parameters import TEXT_FIELDS, check_towers, load_towers, of_towers
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.towers import Embedder, candidate_windows, query_tokens, towers_of
from retrieval.runtime import platforms
from retrieval.search import encoding
from retrieval.stage_outputs import Run
from retrieval.stages.collection import (
    BASELINES,
    CORPUS,
    START,
    TRAINED,
    UNTRAINED,
    Collection,
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
    tokens_of = functools.partial(query_tokens, config, vocabulary)
    windows_of = functools.partial(candidate_windows, config, vocabulary)
    items, counts = collections(run), {}
    same = repeated(items)
    systems = {TRAINED: lambda: load_towers(run, len(vocabulary))}
    if run.config.encode.untrained:
        systems[UNTRAINED] = lambda: towers_of(config, len(vocabulary))
    if run.config.encode.start:
        systems[START] = lambda: initial_parameters.load_start(run, config, len(vocabulary))
    for system, towers in systems.items():
        params = parameters_of(towers())
        for collection in items:
            name = collection.name
            if name == CORPUS and system in BASELINES:
                continue
            write = functools.partial(
                encoding.encode,
                collection.embeddings(system),
                shard_size=config.encode.shard_size,
                batch_tokens=config.encode.batch_tokens,
                longest=longest_text(config),
                multiple=mesh.size,
            )
            if name != CORPUS:
                queries = beir.read_queries(run.sets / name / "queries.jsonl")
                _encode_queries("queries", queries, write, embedder.queries(params), tokens_of)
            if system == TRAINED and name == examples.split_set(run):
                queries, _ = examples.validation(run)
                _encode_queries("validation", queries, write, embedder.queries(params), tokens_of)
            counts[f"{name}, {system}"] = total = sum(1 for _ in collection.candidates())
            if first := same.get(name):
                _log.info("%s has the candidates of %s: embeddings are copied", name, first.name)
                size = config.encode.shard_size
                encoding.copy(first.embeddings(system), collection.embeddings(system), "candidates", total, size)
            else:
                _encode_candidates(collection, total, write, embedder.documents(params), windows_of)
    return counts


def _encode_queries(
    kind: str, queries: Mapping[str, str], write: Callable, embed: encoding.Embed, tokens: Callable
) -> None:
    write(kind, queries.items(), len(queries), lambda texts: [[ids] for ids in tokens(texts)], embed)


def _encode_candidates(
    collection: Collection, total: int, write: Callable, embed: encoding.Embed, tokens: Callable
) -> None:
    """The candidates are read as they are encoded: a collection may be larger than the memory."""
    write("candidates", ((item.id, item) for item in collection.candidates()), total, tokens, embed)


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
        check=(Run.check_vocabulary, check_towers, check_start, platforms.check),
        reads="checkpoint, sets, passages",
        writes="`embeddings/`",
        settings=("seed", "encode", "model", *(f"data.{name}" for name in TEXT_FIELDS), "loop.validate_queries"),
        needs=("prepare", "sets", "train"),
        requires=("train",),
        also=of_pairs,
        inputs=Run.vocabulary_inputs,
        outputs=("embeddings",),
        fetch=fetch,
        everywhere=True,
        of_model=True,
    ),
)
