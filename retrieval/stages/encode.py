"""The stage `encode`: texts to embeddings."""

import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval.data.sets import beir
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.recipes import encoding_cost, held_out_questions, initial_parameters, prompted
from retrieval.recipes.encoder_sizes import longest_text
from retrieval.recipes.initial_parameters import TEXT_FIELDS, check_towers, load_towers, of_towers
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.towers import Embedder, candidate_windows, form_of, query_tokens, towers_of
from retrieval.runtime import devices, hosts
from retrieval.search import encoding, vector_codes
from retrieval.search.vector_codes import FLOAT32, Form
from retrieval.stages import costs
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

_OUTSIDE = "values outside of the ranges"


def encode(run: Run) -> dict[str, Any]:
    """Writes the embeddings of every set, and of the corpus, by the trained towers and by the baselines."""
    vocabulary = run.load_vocabulary()
    config = of_towers(run)
    mesh = local_mesh(config)  # every host has shards of its own
    items, counts = collections(run), {}
    configs = {item.name: _with_prompts_of(item.name, config, vocabulary) for item in items}
    # Prompts that are not pooled end in different places, and these are a part of the program.
    embedders = {tuple(own.model.pool_from): own for own in configs.values()}
    embedders = {places: Embedder(own, vocabulary, mesh) for places, own in embedders.items()}
    same = repeated(items)
    systems = {TRAINED: lambda: load_towers(run, len(vocabulary))}
    if run.config.encode.untrained:
        systems[UNTRAINED] = lambda: towers_of(config, len(vocabulary))
    if run.config.encode.start:
        systems[START] = lambda: initial_parameters.load_start(run, config, len(vocabulary))
    sizes = {"shard_size": config.encode.shard_size, "batch_tokens": config.encode.batch_tokens}
    options = {**sizes, "longest": longest_text(config), "multiple": mesh.size}
    of_queries, of_candidates = form_of(config, FLOAT32), form_of(config)

    def write_queries(
        folder: Path, kind: str, queries: Mapping[str, str], own: ConfigDict, embed: encoding.Embed
    ) -> None:
        def rows_of(texts: Sequence[str]) -> list[list[list[int]]]:
            return [[ids] for ids in query_tokens(own, vocabulary, texts)]

        encoding.encode(folder, kind, queries.items(), len(queries), rows_of, embed, form=of_queries, **options)

    def embed_some(collection: Collection, total: int, own: ConfigDict, embed: encoding.Embed) -> np.ndarray:
        some = itertools.islice(collection.candidates(), 0, None, -(-total // config.encode.calibrate))
        rows = (row for each in some for row in candidate_windows(own, vocabulary, [each])[0])
        return encoding.encode_rows(rows, embed, config.encode.batch_tokens, longest_text(config), mesh.size)

    for system, towers in systems.items():
        params = parameters_of(towers())
        for collection in items:
            name, folder = collection.name, collection.embeddings(system)
            own = configs[name]
            embedder = embedders[tuple(own.model.pool_from)]
            if name == CORPUS and system in BASELINES:
                continue
            if name != CORPUS:
                queries = beir.read_queries(run.sets / name / "queries.jsonl")
                write_queries(folder, "queries", queries, own, embedder.queries(params))
            if system == TRAINED and name != CORPUS:
                counts[costs.of_set(name)] = _operations(own, vocabulary, collection, list(queries.values()))
            if system == TRAINED and name == held_out_questions.split_set(run):
                held_out = held_out_questions.validation(run)[0]
                write_queries(folder, "validation", held_out, own, embedder.queries(params))
            counts[f"{name}, {system}"] = total = sum(1 for _ in collection.candidates())
            first = same.get(name)
            if first and configs[first.name].data.document_prefix == own.data.document_prefix:
                _log.info("%s has the candidates of %s: embeddings are copied", name, first.name)
                encoding.copy(first.embeddings(system), folder, "candidates", total, config.encode.shard_size)
            else:  # they are read as they are encoded: a collection may be larger than the memory
                texts = ((item.id, item) for item in collection.candidates())
                documents = embedder.documents(params)
                windows_of = functools.partial(candidate_windows, own, vocabulary)
                form = _calibrated(
                    of_candidates, folder, functools.partial(embed_some, collection, total, own, documents)
                )
                encoding.encode(folder, "candidates", texts, total, windows_of, documents, form=form, **options)
            if of_candidates.has_range:
                clipped = hosts.on_first(functools.partial(encoding.clipped, folder, "candidates"))
                counts[f"{name}, {system}, {_OUTSIDE}"] = clipped
                _log.info("%s, %s: %s %s of %s", name, system, f"{clipped:,}", _OUTSIDE, of_candidates.precision)
    return counts


def _operations(config: ConfigDict, vocabulary: Vocabulary, of: Collection, queries: Sequence[str]) -> dict[str, float]:
    """The operations to encode a query and a passage of a set."""
    asked = query_tokens(config, vocabulary, encoding_cost.some(queries, len(queries)))
    total = sum(1 for _ in of.candidates())
    windows = candidate_windows(config, vocabulary, encoding_cost.some(of.candidates(), total))
    count = functools.partial(encoding_cost.operations, config, len(vocabulary), build=towers_of)
    return {
        costs.QUERY: count(lambda towers, text: towers.encode_queries(text, None), [[ids] for ids in asked]),
        costs.PASSAGE: count(lambda towers, text: towers.encode_documents(text, None), windows),
    }


def _calibrated(form: Form, folder: Path, embed_some: Callable[[], np.ndarray]) -> Form:
    """The form of candidates; where it needs ranges, these are of some of them, in a pod as the first host has them.

    Args:
      folder: has the ranges already where the stage was cut off.
      embed_some: gives embeddings of the candidates that count.
    """
    if not form.needs_ranges:
        return form

    def ranges() -> list[list[float]]:
        there = vector_codes.read(folder, "candidates")
        found_2E = there.ranges_2E if there else None
        return (vector_codes.ranges_of(embed_some()) if found_2E is None else found_2E).tolist()

    return form.calibrated(np.asarray(hosts.tell_all(ranges), np.float32))


def check_form(run: Run) -> None:
    """Checks that embeddings can be stored as the config says.

    Raises:
      UserError: they have fewer dimensions than are to be kept, or these do not fill whole bytes.
    """
    form_of(of_towers(run))


def _with_prompts_of(name: str, config: ConfigDict, vocabulary: Vocabulary) -> ConfigDict:
    """The config with the prompts of a collection, of which the corpus has the usual ones."""
    if name == CORPUS:
        return config
    prompted.log_of_set(config, name)
    return prompted.of_set(config, vocabulary, name)


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
            check_form,
            devices.check,
        ),
        fields=(
            "seed",
            "encode",
            "model",
            *(f"data.{name}" for name in (*TEXT_FIELDS, "prompts")),
            "loop.validate_queries",
        ),
        reads=lambda config: ("prepare", "sets", Read("train", required=True), *of_pairs(config)),
        files=Run.vocabulary_inputs,
        fetch=fetch,
        writes=("embeddings",),
        everywhere=True,
    ),
)
