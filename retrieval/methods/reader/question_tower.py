"""The question tower of a reader: that of the towers which embedded its paragraphs, trained on with the reader.

A reader that starts from one with a question tower goes on with that tower.

Paragraphs keep their embeddings (Xiong et al. 2020, section 3.4; Lee et al. 2019, section 6).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.methods.reader.model import SpanReader
from retrieval.models.two_tower import TwoTower
from retrieval.recipes import bert_weights, initial_parameters
from retrieval.recipes.encoder_sizes import size_fields, take_positions
from retrieval.recipes.on_mesh import OnMesh
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.recipe import copy_parameters, recipe_of
from retrieval.recipes.towers import build_towers, query_tokens
from retrieval.search.encoding import encode_rows
from retrieval.stage_outputs import Run

_START = "config.train.init_from"
_HEAD = ("embed_dim", "embed_norm", "head", "pooling", "pool_from", "normalize", "token_types")


def build(config: ConfigDict, vocab_size: int) -> TwoTower:
    """An untrained tower with the sizes of a reader's config, and positions for its questions."""
    config = config.copy_and_resolve_references()
    config.data.document_length = config.data.query_length
    config.model.positions, config.model.tied = 0, True
    return build_towers(config, vocab_size)


def towers_of(run: Run) -> Run:
    """The run with the towers that embedded the paragraphs of a reader's run: the base of the stage `spans`."""
    return run.holder("spans").before("spans").holder("train")


def check_towers(towers: Run, field: str) -> None:
    """Checks that a run has two towers whose paragraphs are one embedding each.

    Raises:
      UserError: it has not.
    """
    if "train" not in towers.config.stages or not recipe_of(towers.config).has_towers:
        raise UserError(
            f"{field} takes the question tower and the embeddings of paragraphs of config.base, and {towers.place} has "
            "no towers: name a run that has, such as one of configs/proqa.py"
        )


def check(run: Run) -> None:
    """Checks that a run that is to train the question tower on can do so.

    Raises:
      UserError: there is none, or it has other sizes than the reader, or too few candidates were kept; or the tower
        that a reader to start from has does not fit.
    """
    if not recipe_of(run.config).retrieves:
        return
    spans, config = run.holder("spans"), run.config
    kept = spans.config.spans.early
    if kept < config.spans.early:
        raise UserError(
            f"config.spans.early={config.spans.early}: {spans.place} keeps {kept} candidates of a question: take no "
            "more than that, or make the spans anew"
        )
    towers = towers_of(run)
    check_towers(towers, "config.train.early=True")
    theirs, ours = _fields(towers.config), _fields(config)
    for field, value in ours.items():
        if value != theirs[field]:
            raise UserError(
                f"config.train.early=True: the question tower of {towers.place} has config.{field}={theirs[field]}, "
                f"and here that is {value}: set it to the same"
            )
    if towers.config.data.query_length > config.data.query_length:
        raise UserError(
            f"config.data.query_length={config.data.query_length}: the question tower of {towers.place} takes "
            f"{towers.config.data.query_length} tokens of a question: set it to so many or more"
        )
    if start := _reader_before(run):
        _check_start(start, towers, config)


def _check_start(start: Run, towers: Run, config: ConfigDict) -> None:
    """Checks that the question tower of another reader fits this one, and the embeddings of its paragraphs."""
    theirs, ours = (_fields(of) | {"data.query_length": of.data.query_length} for of in (start.config, config))
    for field, value in ours.items():
        if value != theirs[field]:
            raise UserError(
                f"{_START}={config.train.init_from}: a question tower with config.{field}={theirs[field]}, and here "
                f"that is {value}: set it to the same, or start from another run"
            )
    try:
        before = towers_of(start)
    except UserError:  # the base of that reader has gone: nobody knows
        return
    if before.folder.resolve() != towers.folder.resolve():
        raise UserError(
            f"{_START}={config.train.init_from}: its question tower was trained beside the embeddings of "
            f"{before.place}, and here they are of {towers.place}: take a config.base with the same towers, or start "
            "from another run"
        )


def _fields(config: ConfigDict) -> dict[str, object]:
    return size_fields(config) | {f"model.{name}": config.model.get(name) for name in _HEAD}


def starter(run: Run) -> Callable[[Any], None]:
    """What gives a reader the question tower that its paragraphs were retrieved with.

    It gives nothing to other models, nor to a reader that has the tower of the reader which it starts from.
    """
    takes = recipe_of(run.config).retrieves and not _reader_before(run)
    return functools.partial(_start, run) if takes else lambda model: None


def _reader_before(run: Run) -> Run | None:
    """The run with a trained question tower that this one's parameters start from, if they do."""
    if not run.config.train.init_from or bert_weights.folders(run.config):
        return None
    start = Run.opened(run.config.train.init_from, _START, run.lock)
    return start if recipe_of(start.config).retrieves else None


def _start(run: Run, model: SpanReader) -> None:
    towers = towers_of(run)
    initial_parameters.check_vocabulary(run, towers.folder, "config.base")
    _, trained = initial_parameters.load_parameters(towers.folder, len(run.load_vocabulary()), run.config.mesh)
    take_positions(trained, run.config.data.query_length)
    copy_parameters(trained.query_tower, model.retriever.query_tower)


def embedded(
    model: SpanReader, towers: ConfigDict, reader: ConfigDict, vocabulary: Vocabulary, texts: Sequence[str]
) -> np.ndarray:
    """Questions to embeddings [Q, E] by the question tower of a reader, on this host's devices.

    Args:
      towers: the config of the towers that it is from: they say how a question is tokenised.
      reader: the config of the reader.
    """
    mesh = local_mesh(reader)
    on_mesh = OnMesh(reader, model, vocabulary.sep_id, mesh)
    embed = on_mesh.compiled(lambda reader, text: reader.retriever.encode_queries(text, None))(parameters_of(model))
    tokens = query_tokens(towers, vocabulary, texts)
    return encode_rows(tokens, embed, reader.encode.batch_tokens, towers.data.query_length, mesh.size)
