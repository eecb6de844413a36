"""How many steps a run trains, what else its config counts in steps, and how long and what a step takes.

The time is at least that of its operations; it is measured by a step that is run on parameters of no meaning.
"""

import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import abstract_model
from retrieval.runs.fitting.examples import abstract_batch
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import initial_parameters, train_state
from retrieval.training import chips, schedules, sharding

_log = logging.getLogger(__name__)


CUT_SHORT = "cut short"  # in the record of a training: how far it came in its minutes
_SIDE = 2048  # of the matrices whose product is timed
_LENGTH = ("steps", "epochs", "minutes")  # the fields of `config.train` that say how long it is


def check(train: ConfigDict, keep_steps: Sequence[int], traced_steps: Sequence[int], refresh_every: int) -> None:
    """Checks what the config says about steps.

    Args:
      train: its group of that name.
      traced_steps: of `config.profile`.
    """
    schedules.check(train.schedule, train.warmup_ratio)
    if not train.epochs:
        _check_fields(train, keep_steps)
        traced(traced_steps, train.steps)
    field = "epochs" if train.epochs else "minutes"
    if train[field] and refresh_every:
        why = f"config.mine.refresh_every={refresh_every} is planned in steps"
        raise UserError(f"config.train.{field}={train[field]:g}: {why}: set it to 0, and config.train.steps")


def with_steps(config: ConfigDict, epoch: int) -> ConfigDict:
    """The config with the steps that `train.epochs` is, where an epoch has so many examples."""
    config, train = config.copy_and_resolve_references(), config.train
    config.train.steps = max(1, math.ceil(train.epochs * epoch / train.batch_size))
    _log.info("train: %g epochs of %d examples are %d steps", train.epochs, epoch, config.train.steps)
    _check_fields(config.train, config.loop.keep_steps)
    traced(config.profile.steps, config.train.steps)
    return config


def planned(run: Run, config: ConfigDict, step: int | None, measure: Callable[[], float]) -> ConfigDict:
    """The config with the steps after which training ends, and with those that its learning rates are planned for.

    The stage's record keeps both, so that a run that is resumed ends as planned, however long a step takes then. One
    that is asked for fewer ends after these, on the original schedule.

    Args:
      config: that of the run, with the steps that `train.epochs` is.
      step: the newest checkpoint, or None.
      measure: gives the seconds of a step. Every host calls it.
    """
    config = config.copy_and_resolve_references()
    train, length = config.train, [run.config.train[name] for name in _LENGTH]
    record = hosts.on_first(lambda: records.read_own_record(run, "train") or {})
    plan = record.get("planned")
    if not plan or plan["asked"] != length:
        steps = _in_time(train, measure()) if train.minutes and train.steps else train.steps
        if plan and step is not None:
            steps, schedule = max(step, min(steps, plan["steps"])), plan["schedule"]
            _log.info("train: ends after step %d of the %d that were planned, and is at %d", steps, plan["steps"], step)
        else:
            steps = max(step or 0, steps)
            schedule = train.schedule_steps or steps
        plan = hosts.on_first(lambda: {"asked": length, "steps": steps, "schedule": schedule})
        if record:
            hosts.on_first(lambda: records.write_record(run, "train", record | {"planned": plan}))
    train.steps = plan["steps"]
    train.schedule_steps = plan["schedule"] if plan["schedule"] != plan["steps"] else 0
    return config


def _in_time(train: ConfigDict, seconds: float) -> int:
    """The steps that `train.minutes` have room for, of those that there are at most."""
    steps = min(train.steps, max(1, int(60 * train.minutes / seconds)))
    numbers = seconds, steps, train.steps, steps * seconds / 60
    _log.info("train: a step takes %.3g s here, so %d of %d steps are trained, in %.3g minutes", *numbers)
    return steps


def cut_short(train: ConfigDict, planned: int) -> dict[str, str]:
    """What the record says of a training that ended before its planned steps.

    Args:
      train: the group of the config, with the steps that were trained.
    """
    if train.steps >= planned or not train.minutes:
        return {}
    epochs = f", {train.epochs * train.steps / planned:.2g} of {train.epochs:g} epochs" if train.epochs else ""
    return {CUT_SHORT: f"{train.steps} of {planned} steps{epochs}, which config.train.minutes={train.minutes:g} ended"}


def warn(train: ConfigDict) -> None:
    """Tells the log which batches change nothing, by the group `train` of the config."""
    updates, rest = divmod(train.steps, train.accumulation)
    if updates == 1 and train.warmup_ratio and not train.schedule_steps:
        _log.warning("train: one update alone, and config.train.warmup_ratio makes its rate 0: nothing changes")
    if updates and rest:
        what = "make no whole update of config.train.accumulation, and change nothing"
        _log.warning("train: the last %d batches %s", rest, what)


def traced(named: Sequence[int], last: int) -> tuple[int, int]:
    """The first and the last step of the trace, 0 and 0 for none."""
    steps = tuple(named) or (0, 0)
    if len(steps) != 2 or (any(steps) and not 0 < steps[0] <= steps[1] <= last):
        needed = f"the first and the last step of the trace, such as 10,15, at most config.train.steps={last}"
        raise UserError(f"config.profile.steps={','.join(map(str, steps))}: {needed}, are needed")
    return steps


def _check_fields(train: ConfigDict, keep_steps: Sequence[int]) -> None:
    """Checks the fields of `config.train` that depend on the number of steps."""
    steps = f"config.train.steps={train.steps}"
    if not train.steps:
        raise UserError(f"{steps} trains nothing: raise it, or list the stage 'adopt' in place of 'train'")
    if 0 < train.schedule_steps < train.steps and train.schedule != "constant":
        what = f"ends before {steps}, with a learning rate of 0 from there on: raise it, or set 0"
        raise UserError(f"config.train.schedule_steps={train.schedule_steps} {what}")
    if train.clip_parts and not (train.clip_norm and train.accumulation > 1):
        way = "set config.train.clip_norm, and config.train.accumulation above 1"
        raise UserError(f"config.train.clip_parts=True clips between the batches of an update: {way}")
    if train.steps < train.accumulation:
        what = f"is more than {steps}: nothing would ever be updated; lower it, or raise the steps"
        raise UserError(f"config.train.accumulation={train.accumulation} {what}")
    if late := [step for step in keep_steps if step > train.steps]:
        raise UserError(f"config.loop.keep_steps has {late[0]}, after {steps}: leave it out, or raise the steps")


def operations_per_second(devices: Sequence[sharding.Device]) -> float:
    """What devices do together at most: by their maker, else as a product of matrices on the first one shows.

    The devices of a CPU share its cores, so a host's are as fast as one.
    """
    if chip := chips.of(devices[0]):
        return len(devices) * chip.peak_flops / chip.cores
    several = len({device.process_index for device in devices}) if devices[0].platform == "cpu" else len(devices)
    here = next(device for device in devices if device.process_index == jax.process_index())
    dtype = jnp.float32 if here.platform == "cpu" else jnp.bfloat16
    matrix = jax.device_put(jnp.ones((_SIDE, _SIDE), dtype), here)
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    began = time.perf_counter()
    product(matrix, matrix).block_until_ready()
    return several * 2 * _SIDE**3 / (time.perf_counter() - began)


def measure_step(config: ConfigDict, size: int, devices: Sequence[sharding.Device]) -> float:
    """The seconds of a step with a vocabulary of `size` tokens, the median of three."""
    config = config.copy_and_resolve_references()
    config.train.init_from = ""  # whatever the parameters are, they take as long
    mesh, model = make_mesh(config, devices), abstract_model(config, size)
    like = train_state.abstract_state(config, model, mesh)
    state = initial_parameters.initial_state(config, size, like)
    ones = lambda leaf: sharding.place(np.ones(leaf.shape, leaf.dtype), leaf.sharding)  # noqa: E731
    batch = jax.tree.map(ones, abstract_batch(config, mesh))
    seconds = []
    with jax.set_mesh(mesh):
        step = train_state.make_step(config, model)
        for _ in range(4):  # the first is compiled
            began = time.perf_counter()
            state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def mean_flops(
    count: Callable[[Mapping[str, Any]], float], batches: Sequence[Mapping[str, Any]], shares: Sequence[float]
) -> float:
    """Operations of a step on average, over batches that are drawn so often; those of one shape are counted once."""
    of_shape: dict[Any, tuple[Mapping[str, Any], float]] = {}
    for batch, share in zip(batches, shares, strict=True):
        shape = jax.tree.structure(batch), tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        of_shape[shape] = batch, of_shape.get(shape, (batch, 0.0))[1] + share
    return sum(share * count(batch) for batch, share in of_shape.values())
