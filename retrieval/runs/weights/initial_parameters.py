"""What parameters start from, and the state before the first step."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.registry import Table
from retrieval.common.runtime import hub
from retrieval.common.runtime.arrays import on_host
from retrieval.data.tokenizers import prefixes
from retrieval.models.encoders.family import is_encoder
from retrieval.recipes.parameters import parameters_of
from retrieval.recipes.recipe import build_model, recipe_of
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import train_state
from retrieval.training import sharding
from retrieval.training.loop import TrainState

FIELD = "config.train.init_from"
# Of `config.data`, what says how towers take texts.
TEXT_FIELDS = ("query_length", "document_length", *prefixes.NAMES, "titles", "append_eos")


class Start:
    """What parameters start from, where `train.init_from` names nothing: they are as they are drawn."""

    def inputs(self, run: Run) -> Sequence[Path]:
        """The files that tell whether what the run starts from has changed.

        Raises:
          UserError: it is not there, or not finished.
        """
        return ()

    def fetch(self, run: Run) -> None:
        """Copies down what `check` reads, where that is on a store."""

    def check(self, run: Run) -> None:
        """Checks that the run's parameters can start from it.

        Raises:
          UserError: that is a model of other sizes or of another vocabulary, or not trained.
        """

    def check_tensors(self, config: ConfigDict) -> None:
        """Checks that every parameter gets its own, as far as that takes a look at tensors."""

    def init(self, model: nnx.Module, config: ConfigDict, vocab_size: int) -> None:
        """Gives a model the parameters to start from; what there is none for stays as it is."""


STARTS: Table[Start] = Table("start", "retrieval.runs.weights", "start")
STARTS.register("", Start())


def start_of(config: ConfigDict) -> Start:
    """What `train.init_from` names: nothing, published weights, or another run."""
    return STARTS[_kind(config.train.init_from)]


def _kind(value: str) -> str:
    is_published = "," in value or hub.is_name(value) or (bool(value) and is_encoder(Path(value)))
    return "published" if is_published else "run" if value else ""


def check_step(config: ConfigDict) -> None:
    """Checks that a step to start from is one of a trained run, and the fields of adapters."""
    if (step := config.train.init_step) and _kind(config.train.init_from) != "run":
        raise UserError(f"config.train.init_step={step} is a step of a trained run: set {FIELD} to one, or this to 0")
    if adapters := train_state.adapters_of(config):
        adapters.check(config)


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
        start_of(config).init(model, config, vocab_size)
        begin(model)
    params = parameters_of(model)
    if adapters := train_state.adapters_of(config):
        params = adapters.filled(config, params, like.params)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
    cast = jax.tree.map(lambda leaf, to: np.asarray(leaf).astype(to.dtype), params, like.params)
    params = jax.tree.map(sharding.place, cast, shardings.params)
    create = functools.partial(TrainState.create, optimizer=train_state.make_optimizer(config))
    return jax.jit(create, out_shardings=shardings)(params)


def decided(config: ConfigDict) -> tuple[str, ...]:
    """The fields that towers are used with as they were trained with; none of a model without towers."""
    return ("model", *(f"data.{name}" for name in TEXT_FIELDS)) if recipe_of(config).has_towers else ()
