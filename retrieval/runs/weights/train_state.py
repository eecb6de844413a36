"""The state that a config trains: optimizer and step, its shapes and shardings, its checkpoints."""

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from retrieval.common.runtime import artefacts, devices
from retrieval.models.transformer_config import remat_for
from retrieval.recipes import source_objective
from retrieval.recipes.encoder_sizes import architecture_of, head_size
from retrieval.recipes.parameters import bind, is_stacked, parameters_of, shardings_of
from retrieval.recipes.recipe import abstract_model, recipe_of
from retrieval.training import loop, optimizer, schedules, work
from retrieval.training.checkpoint import Checkpointer
from retrieval.training.loop import TrainState


def open_checkpoints(
    folder: Path, config: ConfigDict, before: Callable[[], None] = lambda: None, alone: bool = False
) -> Checkpointer:
    """The checkpoints of a work directory.

    Args:
      before: is called before one is written, for what a run that goes on from it has to have besides.
      alone: whether this host alone reads them, and none is written.
    """
    fields, place = config.loop, artefacts.checkpoints(folder)
    best = fields.best if fields.validate_every else ""
    return Checkpointer(place, fields.keep_checkpoints, best, named=fields.keep_steps, before=before, alone=alone)


def afresh(config: ConfigDict, state: TrainState, params: Any) -> TrainState:
    """A state with other parameters, at the same step, whose optimizer begins the second phase of a run."""

    def create(step: jax.Array, params: Any) -> TrainState:
        begun = TrainState.create(params, make_optimizer(config))
        updates = -(-step // config.train.accumulation)  # what is left of an update counts as one
        return dataclasses.replace(begun, step=step, opt_state=schedules.begin_second(begun.opt_state, updates))

    return jax.jit(create, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, state))(state.step, params)


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """The optimizer that the config has; its schedule counts updates."""
    train, mine = config.train, config.mine
    steps = train.schedule_steps or train.steps
    tx = optimizer.make_optimizer(
        **{name: train[name] for name in ("learning_rate", "warmup_ratio", "weight_decay", "schedule")},
        steps=max(1, steps // train.accumulation),
        clip_norm=train.clip_norm or None,
        epsilon=train.adam_epsilon,
        name=train.optimizer,
        lamb_norm_limit=train.lamb_norm_limit or None,
        is_stacked=is_stacked,
        second_rate=(mine.patience and mine.turn_rate) or None,
    )
    return optimizer.accumulated(tx, train.accumulation, train.clip_norm if train.clip_parts else None)


def make_step(config: ConfigDict, model: nnx.Module) -> Callable:
    """The config's train step, as `loop.make_step` gives it; the model may be abstract."""
    devices.trim_after_compiling()
    devices.keep_programs()
    return loop.make_step(source_objective.objective(config, bind(model)), make_optimizer(config), config.seed)


def useful_flops(
    config: ConfigDict, vocab_size: int, state: TrainState, batch: Mapping[str, Any], step: Callable | None = None
) -> float:
    """Operations of a device in a step, if nothing were computed twice, and no score of a token that is not seen.

    State and batch may be shapes. What other texts of a packed row have of the scores counts.

    Args:
      step: the config's own, if it is about to be run: where it computes nothing twice, it is traced once for both.
    """
    model = config.model
    unattended = _unseen_flops(config, batch)
    if step and not config.train.chunk_size and remat_for(model.remat, model.num_layers, model.hidden_size) == "none":
        return work.flops(step.trace(state, batch).jaxpr) - unattended
    once = config.copy_and_resolve_references()
    once.model.remat, once.train.chunk_size = "none", 0
    once.model.attention = "plain"  # a kernel fills rows up, and computes its scores again for the gradient
    return work.flops(make_step(once, abstract_model(once, vocab_size)).trace(state, batch).jaxpr) - unattended


def _unseen_flops(config: ConfigDict, batch: Mapping[str, Any]) -> float:
    """Operations of a device on what an encoder's masks leave out, causality and windows: plain attention has them."""
    model = config.model
    if model.encoder != "transformer":
        return 0.0
    switches, total = architecture_of(model), 0.0
    locality = switches.locality()
    for field in recipe_of(config).kind.sides:
        shape = batch[field].sharding.shard_shape(batch[field].shape)
        for layer in range(model.num_layers):
            window = switches.window if locality[layer % len(locality)] else None
            total += math.prod(shape) * work.unattended(shape[-1], switches.causal, window)
    # Two products of two operations for a value of each head; the backward pass takes twice the forward pass.
    return 3 * 2 * 2 * model.num_heads * head_size(model) * total


def adapters_of(config: ConfigDict) -> Any:
    """The module `adapters` where these alone are trained, else None: a model that is trained whole never reads it."""
    return importlib.import_module("retrieval.runs.weights.adapters") if config.train.lora.rank else None


def abstract_state(config: ConfigDict, model: nnx.Module, mesh: jax.sharding.Mesh) -> TrainState:
    """Shapes, types and shardings of the state that the config trains, without a single value of it."""
    adapters, params = adapters_of(config), parameters_of(model)
    params = adapters.with_shapes(config, params) if adapters else params
    params = jax.tree.map(_at, params, shardings_of(params, config, mesh))
    with jax.set_mesh(mesh):
        state = jax.eval_shape(functools.partial(TrainState.create, optimizer=make_optimizer(config)), params)
    # What the optimizer keeps for a parameter lies where the parameter does; the rest are a few numbers.
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec if leaf.sharding else P(), state)
    return jax.tree.map(lambda leaf, spec: _at(leaf, NamedSharding(mesh, spec)), state, specs)


def _at(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
