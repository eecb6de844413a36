"""What parameters start from, and whether that fits; and the trained ones that other stages take."""

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval.data.tokenizers import prefixes, vocabularies
from retrieval.errors import UserError, hub_hint
from retrieval.models import two_tower
from retrieval.models.encoders.family import CONFIGS
from retrieval.models.two_tower import TwoTower
from retrieval.pipeline import records
from retrieval.pipeline.run import Run
from retrieval.pipeline.work_directory import kept_config
from retrieval.recipes import adapters, bert_weights, prompted, train_state
from retrieval.recipes.encoder_sizes import architecture_of, position_count, size_fields, take_positions
from retrieval.recipes.placement import bind, local_mesh, parameters_of
from retrieval.recipes.recipe import abstract_model, build_model, recipe_of
from retrieval.recipes.towers import build_towers, truncated
from retrieval.runtime import artefacts
from retrieval.runtime.arrays import on_host
from retrieval.training import checkpoint, sharding
from retrieval.training.loop import TrainState

_log = logging.getLogger(__name__)

_FIELD = "config.train.init_from"
# Of `config.data`, what says how towers take texts.
TEXT_FIELDS = ("query_length", "document_length", *prefixes.NAMES, "titles", "append_eos")


def train_inputs(run: Run) -> Sequence[Path]:
    """What tells whether the parameters that this run starts from have changed.

    The record of the run that trained them, or the files of a folder of BERT's weights.
    """
    folder = run.config.train.init_from
    if not folder:
        return ()
    if weights := bert_weights.inputs(run.config):
        return weights
    place = artefacts.local(folder)
    if not any((place / name).exists() for name in CONFIGS):
        why = "no config.json there" if place.exists() else "no such folder"
        needed = "a work directory is needed, or a folder of BERT's weights (config.json beside model.safetensors)"
        raise UserError(f"{_FIELD}={folder}: {why}; {needed}{hub_hint(folder)}")
    start = Run.opened(folder, _FIELD, run.lock)
    if not (records.read_own_record(start, "train") or {}).get("done"):
        raise UserError(f"{_FIELD}={folder}: not a work directory with a finished train stage")
    return (start.own_record("train"),)


def fetch_start(run: Run) -> None:
    """Copies down the vocabulary of the parameters to start from, to compare with, where that is on a store."""
    start = run.config.train.init_from
    if not start or bert_weights.folders(run.config):
        return
    train_inputs(run)  # which says so where that is no finished run
    fetch_model(Run.opened(start, _FIELD, run.lock))


def fetch_model(trained: Run) -> None:
    """Copies down the vocabulary that a run was trained with, where that is on a store."""
    try:
        prepared = trained.holder("prepare")
    except UserError:  # the base of that run has gone, and its vocabulary with it
        return
    if copy := prepared.copy:
        copy.get([f"corpus/{name}" for name in vocabularies.ALL_FILES])


def check_start(run: Run) -> None:
    """Checks that the run's parameters can start from those of `train.init_from`."""
    start = run.config.train.init_from
    if not start:
        return
    train_inputs(run)
    if bert_weights.folders(run.config):
        bert_weights.check(run.config, run.vocabulary)
        return
    folder = artefacts.local(start)
    check_vocabulary(run, folder, _FIELD)
    check_sizes(run.config, kept_config(folder))
    if step := run.config.train.init_step:
        check_kept(step, checkpoint.steps_in(artefacts.checkpoints(folder)), folder)


def check_step(config: ConfigDict) -> None:
    """Checks that a step to start from is one of a trained run, and that a run of no steps starts from something."""
    if config.train.init_step and (not config.train.init_from or bert_weights.folders(config)):
        way = f"set {_FIELD} to its work directory, or config.train.init_step=0"
        raise UserError(f"config.train.init_step={config.train.init_step} is a step of a trained run: {way}")
    if not config.train.steps and not config.train.init_from:
        way = "set it, or raise the steps"
        raise UserError(
            f"config.train.steps=0 takes the parameters of {_FIELD} as they are, and that names none: {way}"
        )


def check_kept(step: int, steps: Collection[int], folder: Path | str) -> None:
    """Checks that a run keeps the checkpoint of a step."""
    if step not in steps:
        raise UserError(
            f"config.train.init_step={step}: {folder} keeps no checkpoint of that step, but of "
            f"{', '.join(map(str, sorted(steps))) or 'none'}: take one of these, or train with "
            f"config.loop.keep_steps={step}, in another work directory"
        )


def check_sizes(config: ConfigDict, start: ConfigDict) -> None:
    """Checks that a model of a config can start from one of another config.

    Raises:
      UserError: they have other sizes, are of another kind, or the other has positions for shorter texts alone.
    """
    recipe, other, named = recipe_of(config), recipe_of(start), f"{_FIELD}={config.train.init_from}"
    is_encoder_alone = recipe.takes_encoder(other)
    if is_encoder_alone and other.pre_norm:
        problem = f"an encoder whose norms stand before its sublayers, and those of {recipe.label} stand after"
        raise UserError(f"{named}: {problem}: start from a run with config.model.writer.pre_norm=False")

    def fields(config: ConfigDict) -> dict[str, Any]:
        head = {name: config[group][field] for name in recipe.head for group, _, field in [name.partition(".")]}
        return size_fields(config) | ({} if is_encoder_alone else {**head, "recipe": config.recipe})

    theirs = fields(start)
    for field, ours in fields(config).items():
        if ours != theirs.get(field):
            problem = (
                f"a model of other sizes or another kind, config.{field} is {theirs.get(field)} there and {ours} here"
            )
            raise UserError(f"{named}: {problem}: take the same, or another run to start from")
    ours, theirs = position_count(config), position_count(start)
    is_learned = config.model.encoder == "transformer" and architecture_of(config.model).positions == "learned"
    if is_learned and ours > theirs:
        raise UserError(
            f"{named}: an encoder of {theirs} positions, the longer of config.data.query_length and "
            f"config.data.document_length there, and here that is {ours}: set both to {theirs} at most, or start from "
            "a run of longer texts"
        )


def check_towers(run: Run) -> None:
    """Checks that the run's model was trained with its vocabulary, as `check_vocabulary`."""
    check_vocabulary(run, run.holder("train").folder, "config.base")


def check_vocabulary(run: Run, folder: Path, field: str) -> None:
    """Checks that the model of a work directory was trained with the vocabulary of the run, by the record of its stage.

    Raises:
      UserError: it was not; with as many tokens nobody would notice, and the model would read nonsense.
    """
    if not (folder / "config.json").exists():
        return
    trained, ours = Run(kept_config(folder), folder, run.lock), run.vocabulary
    then = ((records.read_own_record(trained, "train") or {}).get("details") or {}).get("vocabulary")
    if not ours or then in (None, vocabularies.load(ours).fingerprint):
        return
    try:
        own = f"use its own, --config.vocab={trained.vocabulary}, in a --workdir of its own, or a base that has it"
    except UserError:  # the base of that run has gone, and its vocabulary with it
        own = "put back the vocabulary that it had"
    raise UserError(f"{field}={folder}: trained with another vocabulary than {ours}; {own}; or train it again")


def initial_state(
    config: ConfigDict, vocab_size: int, like: TrainState, begin: Callable[[nnx.Module], None] = lambda model: None
) -> TrainState:
    """The state before the first step, where `like` has it.

    To be called without a mesh: then the parameters are whole in the host's memory before they are spread, and nowhere
    else.

    Args:
      begin: gives a model further parameters to start from, as `Recipe.begin` does.
    """
    with on_host():
        model = build_model(config, vocab_size)
        if config.train.init_from:
            init_from(model, config, vocab_size)
        begin(model)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
    params = jax.tree.map(
        lambda leaf, to: sharding.place(np.asarray(leaf).astype(to.dtype), to.sharding),
        adapters.filled(config, parameters_of(model), like.params),
        like.params,
    )
    create = functools.partial(TrainState.create, optimizer=train_state.make_optimizer(config))
    return jax.jit(create, out_shardings=shardings)(params)


def load_parameters(folder: Path, vocab_size: int, mesh: ConfigDict, step: int = 0) -> tuple[ConfigDict, Any]:
    """The trained model of a work directory, and its config; adapters are merged into what they stand on.

    Args:
      mesh: how this host's devices share the parameters, whatever the mesh that they were trained on.
      step: the checkpoint; 0 for the one that its record names: its best validated step, or its last one.

    Raises:
      UserError: there is no finished checkpoint, it is of a model with another vocabulary, or its adapters were trained
        on another one than `train.init_from` names now.
    """
    config, params = load_adapted(folder, vocab_size, mesh, step)
    return config, bind(abstract_model(config, vocab_size))(adapters.merged(config, params))


def load_adapted(folder: Path, vocab_size: int, mesh: ConfigDict, step: int = 0) -> tuple[ConfigDict, Any]:
    """As `load_parameters`, the parameters themselves, with adapters beside what these stand on."""
    config = kept_config(folder)
    run = Run(config, folder, Path())
    record = records.read_own_record(run, "train") or {}
    step = step or (record.get("details") or {}).get("step", 0)
    config.mesh = mesh
    like = train_state.abstract_state(config, abstract_model(config, vocab_size), local_mesh(config))
    if config.train.lora.rank:
        adapters.check_base(record, train_inputs(run), folder)
        like = initial_state(config, vocab_size, like)
    with contextlib.closing(train_state.read_checkpoints(folder, config)) as checkpointer:
        return config, like.restored(checkpointer, step=step or checkpointer.best_step()).params


def load_towers(run: Run, vocab_size: int) -> TwoTower:
    """The trained towers of a run; those of an MLM run have its encoder and an untrained projection."""
    check_towers(run)
    _, trained = load_parameters(run.holder("train").folder, vocab_size, run.config.mesh)
    if isinstance(trained, TwoTower):
        return trained
    towers = build_towers(run.config, vocab_size)
    take_positions(trained, position_count(run.config))
    two_tower.init_encoders(towers, trained.encoder)
    return towers


def load_start(run: Run, config: ConfigDict, vocab_size: int) -> TwoTower:
    """The towers of a config that the training of a run starts from."""
    config = config.copy_and_resolve_references()
    config.train = run.holder("train").config.train
    towers = build_towers(config, vocab_size)
    init_from(towers, config, vocab_size)
    return towers


def decided(config: ConfigDict) -> tuple[str, ...]:
    """The fields that towers are used with as they were trained with; none of a model without towers."""
    return ("model", *(f"data.{name}" for name in TEXT_FIELDS)) if recipe_of(config).has_towers else ()


def of_towers(run: Run) -> ConfigDict:
    """The run's config with the sizes and lengths of the towers that it has: its base's, where they were trained there.

    Their named prompts are among its own, and they are cut as the embeddings are that the stage `encode` made. An MLM
    trains no towers: those with its encoder are as the run's own config has them.

    Raises:
      UserError: embeddings have fewer dimensions than are to be kept.
    """
    trained, config = run.holder("train").config, run.config.copy_and_resolve_references()
    if recipe_of(trained).has_towers:
        config.recipe, config.model = trained.recipe, trained.model
        for name in TEXT_FIELDS:
            config.data[name] = trained.data[name]
        prompted.take(config, trained)
    config.encode.update(run.holder("encode").config.encode)
    return truncated(config, config.encode.truncate)


def init_from(model: nnx.Module, config: ConfigDict, vocab_size: int) -> None:
    """Starts a model from what `train.init_from` names.

    That is BERT's weights, or a trained model: all of one of its kind, or the encoder of another kind; of two MLMs, one
    of which has a decoder, the parameters of the MLM. A model of shorter texts takes the first positions.
    """
    if bert_weights.folders(config):
        bert_weights.init(model, config)
        return
    folder = artefacts.local(config.train.init_from)
    _, trained = load_parameters(folder, vocab_size, config.mesh, config.train.init_step)
    take_positions(trained, position_count(config))
    try:
        recipe_of(config).start_from(model, trained)
    except UserError as error:
        raise UserError(f"{_FIELD}={folder}: {error}") from error
    _log.info("parameters start from %s", folder)
