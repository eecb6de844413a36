"""Trained runs: their parameters, for stages that work with them and for runs that start from them."""

import contextlib
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.errors import UserError, hub_hint
from retrieval.common.runtime import artefacts
from retrieval.data.tokenizers import vocabularies
from retrieval.models import two_tower
from retrieval.models.encoders.family import CONFIG
from retrieval.models.two_tower import TwoTower
from retrieval.recipes.encoder_sizes import architecture_of, position_count, size_fields, take_positions
from retrieval.recipes.parameters import bind, local_mesh
from retrieval.recipes.recipe import Recipe, abstract_model, recipe_of
from retrieval.recipes.towers import build_towers, truncated
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.preflight import read_config
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.work_directory import kept_config
from retrieval.runs.weights import initial_parameters, prompted, train_state
from retrieval.runs.weights.initial_parameters import FIELD, STARTS, TEXT_FIELDS, Start
from retrieval.training import checkpoint

_log = logging.getLogger(__name__)


class TrainedRun(Start):
    """A model that another run has trained: all of one of its kind, or the encoder of another kind; of two MLMs, one
    of which has a decoder, the parameters of the MLM. A model of shorter texts takes the first positions.
    """

    def inputs(self, run: Run) -> Sequence[Path]:
        """The record of the run that trained it."""
        folder = run.config.train.init_from
        place = artefacts.local(folder)
        if not (place / CONFIG).exists():
            why = "no config.json there" if place.exists() else "no such folder"
            needed = f"a work directory is needed, or a folder of BERT's weights (with config.json){hub_hint(folder)}"
            raise UserError(f"{FIELD}={folder}: {why}; {needed}")
        start = Run.opened(folder, FIELD, run.lock)
        record = records.read_own_record(start, "train")
        if not record or not record["done"]:
            raise UserError(f"{FIELD}={folder}: not a work directory with a finished train stage")
        return (start.own_record("train"),)

    def fetch(self, run: Run) -> None:
        """Copies down its vocabulary, to compare with, where that is on a store."""
        self.inputs(run)  # which says so where that is no finished run
        fetch_model(Run.opened(run.config.train.init_from, FIELD, run.lock))

    def check(self, run: Run) -> None:
        """Checks that it is trained, of the run's sizes and vocabulary, and has the step that is asked for."""
        self.inputs(run)
        folder = artefacts.local(run.config.train.init_from)
        check_vocabulary(run, folder, FIELD)
        check_sizes(run.config, read_config(folder))
        if step := run.config.train.init_step:
            check_kept(step, checkpoint.steps_in(artefacts.checkpoints(folder)), folder)

    def init(self, model: nnx.Module, config: ConfigDict, vocab_size: int) -> None:
        """As `Start.init`."""
        folder = artefacts.local(config.train.init_from)
        _, trained = load_parameters(folder, vocab_size, config.mesh, config.train.init_step)
        take_positions(trained, position_count(config))
        try:
            recipe_of(config).start_from(model, trained)
        except UserError as error:
            raise UserError(f"{FIELD}={folder}: {error}") from error
        _log.info("parameters start from %s", folder)


STARTS.register("run", TrainedRun())


def fetch_model(trained: Run) -> None:
    """Copies down the vocabulary that a run was trained with, where that is on a store.

    Raises:
      UserError: a store does not answer.
    """
    try:
        prepared = trained.owner("prepare")
    except UserError:  # the base of that run has gone, and its vocabulary with it
        return
    if copy := prepared.remote:
        copy.get([f"corpus/{name}" for name in vocabularies.ALL_FILES])


def check_kept(step: int, steps: Collection[int], folder: Path | str) -> None:
    """Checks that a run keeps the checkpoint of a step."""
    if step not in steps:
        what = f"keeps no checkpoint of that step, but of {', '.join(map(str, sorted(steps))) or 'none'}"
        way = f"take one of these, or train with config.loop.keep_steps={step}, in another work directory"
        raise UserError(f"config.train.init_step={step}: {folder} {what}: {way}")


def check_sizes(config: ConfigDict, start: ConfigDict) -> None:
    """Checks that a model of a config can start from one of another config.

    Raises:
      UserError: they have other sizes, are of another kind, or the other has positions for shorter texts alone.
    """
    recipe, other, named = recipe_of(config), recipe_of(start), f"{FIELD}={config.train.init_from}"
    is_encoder_alone = recipe.takes_encoder(other)
    if is_encoder_alone and other.pre_norm:
        what = f"an encoder whose norms stand before its sublayers, and those of {recipe.label} stand after"
        raise UserError(f"{named}: {what}: start from a run with config.model.writer.pre_norm=False")
    theirs, ours = ({} if is_encoder_alone else _head_fields(each, recipe) for each in (start, config))
    theirs, ours = size_fields(start) | theirs, size_fields(config) | ours
    if field := next((field for field in ours if ours[field] != theirs.get(field)), ""):
        what = f"config.{field} is {theirs.get(field)} there and {ours[field]} here: take the same, or another run"
        raise UserError(f"{named}: a model of other sizes or another kind, {what} to start from")
    here, there = position_count(config), position_count(start)
    is_learned = config.model.encoder == "transformer" and architecture_of(config.model).positions == "learned"
    if is_learned and here > there:
        what = f"an encoder of {there} positions, and texts here have up to {here} tokens"
        way = f"set config.data.query_length and config.data.document_length to {there} at most"
        raise UserError(f"{named}: {what}: {way}, or start from a run of longer texts")


def _head_fields(config: ConfigDict, recipe: Recipe) -> dict[str, Any]:
    """The fields on which it depends, beside its encoder's, whether a model suits another one of a recipe."""
    head = {name: config[group][field] for name in recipe.head for group, _, field in [name.partition(".")]}
    return head | {"recipe": config.recipe}


def check_towers(run: Run) -> None:
    """Checks that the run's model was trained with its vocabulary, as `check_vocabulary`."""
    check_vocabulary(run, run.owner("train").folder, "config.base")


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


def load_parameters(folder: Path, vocab_size: int, mesh: ConfigDict, step: int = 0) -> tuple[ConfigDict, Any]:
    """The trained model of a work directory, and its config; adapters are merged into what they stand on.

    Args:
      mesh: how this host's devices share the parameters, whatever the mesh that they were trained on.
      step: the checkpoint; 0 for the one that its record names: its best validated step, or its last one.

    Raises:
      UserError: there is no finished checkpoint, it is of a model with another vocabulary, or its adapters were trained
        on another one than `train.init_from` names now.
    """
    config, params, model = _loaded(folder, vocab_size, mesh, step)
    if adapters := train_state.adapters_of(config):
        params = adapters.merged(config, params)
    return config, bind(model)(params)


def load_adapted(folder: Path, vocab_size: int, mesh: ConfigDict, step: int = 0) -> tuple[ConfigDict, Any]:
    """As `load_parameters`, the parameters themselves, with adapters beside what these stand on."""
    config, params, _ = _loaded(folder, vocab_size, mesh, step)
    return config, params


def _loaded(folder: Path, vocab_size: int, mesh: ConfigDict, step: int) -> tuple[ConfigDict, Any, Any]:
    """As `load_adapted`, and the abstract model."""
    config = read_config(folder)
    run = Run(config, folder, Path())
    record = records.read_own_record(run, "train") or {}
    step = step or (record.get("details") or {}).get("step", 0)
    config.mesh = mesh
    model = abstract_model(config, vocab_size)
    like = train_state.abstract_state(config, model, local_mesh(config))
    if adapters := train_state.adapters_of(config):
        adapters.check_base(record, initial_parameters.start_of(config).inputs(run), folder)
        like = initial_parameters.initial_state(config, vocab_size, like)
    if not checkpoint.steps_in(artefacts.checkpoints(folder)):
        raise UserError(f"{folder}: has no checkpoint, so no model can be read; its stage 'train' makes one")
    with contextlib.closing(train_state.open_checkpoints(folder, config, alone=True)) as checkpointer:
        return config, like.restored(checkpointer, step=step or checkpointer.best_step()).params, model


def load_towers(run: Run, vocab_size: int) -> TwoTower:
    """The trained towers of a run; those of an MLM run have its encoder and an untrained projection."""
    check_towers(run)
    _, trained = load_parameters(run.owner("train").folder, vocab_size, run.config.mesh)
    if isinstance(trained, TwoTower):
        return trained
    towers = build_towers(run.config, vocab_size)
    take_positions(trained, position_count(run.config))
    two_tower.init_encoders(towers, trained.encoder)
    return towers


def load_start(run: Run, config: ConfigDict, vocab_size: int) -> TwoTower:
    """The towers of a config that the training of a run starts from."""
    config = config.copy_and_resolve_references()
    config.train = run.owner("train").config.train
    towers = build_towers(config, vocab_size)
    initial_parameters.start_of(config).init(towers, config, vocab_size)
    return towers


def of_towers(run: Run) -> ConfigDict:
    """The run's config with the sizes and lengths of the towers that it has: its base's, where they were trained there.

    Their named prompts are among its own, and they are cut as the embeddings are that the stage `encode` made. An MLM
    trains no towers: those with its encoder are as the run's own config has them.

    Raises:
      UserError: embeddings have fewer dimensions than are to be kept.
    """
    trained, config = run.owner("train").config, run.config.copy_and_resolve_references()
    if recipe_of(trained).has_towers:
        config.recipe, config.model = trained.recipe, trained.model
        for name in TEXT_FIELDS:
            config.data[name] = trained.data[name]
        prompted.take(config, trained)
    config.encode.update(run.owner("encode").config.encode)
    return truncated(config, config.encode.truncate)
