"""How many steps a run trains, and what else its config counts in steps."""

import logging
import math
from collections.abc import Callable, Sequence

from ml_collections import ConfigDict

from retrieval.config.tree import declared
from retrieval.errors import UserError
from retrieval.pipeline import records
from retrieval.pipeline.run import Run
from retrieval.runtime import hosts
from retrieval.training import schedules

_log = logging.getLogger(__name__)

_LENGTH = ("steps", "epochs", "minutes")  # the fields of `config.train` that say how long it is


def check(train: ConfigDict, keep_steps: Sequence[int], traced_steps: Sequence[int], refresh_every: int) -> None:
    """Checks what the config says about steps.

    Args:
      train: its group of that name.
      traced_steps: of `config.profile`.

    Raises:
      UserError: no update would ever come, there is no such trace, or the learning rate ends before the run or has
        no room.
    """
    schedules.check(train.schedule, train.warmup_ratio, train.decay_ratio)
    usual = declared()["train.decay_ratio"].default
    if train.schedule != "wsd" and train.decay_ratio != usual:
        raise UserError(
            f"config.train.decay_ratio={train.decay_ratio:g} is of config.train.schedule=wsd, and that is "
            f"{train.schedule}: set config.train.decay_ratio={usual}"
        )
    if not train.epochs:
        _check_fields(train, keep_steps)
        traced(traced_steps, train.steps)
    field = "epochs" if train.epochs else "minutes"
    if train[field] and refresh_every:
        raise UserError(
            f"config.train.{field}={train[field]:g} and config.mine.refresh_every={refresh_every}: refreshes are "
            f"planned in steps: set config.train.steps, and config.train.{field}=0"
        )


def with_steps(config: ConfigDict, epoch: int) -> ConfigDict:
    """The config with the steps that `train.epochs` is.

    Args:
      epoch: the examples of one.

    Raises:
      UserError: as `check`, of that number.
    """
    config, train = config.copy_and_resolve_references(), config.train
    config.train.steps = max(1, math.ceil(train.epochs * epoch / train.batch_size))
    _log.info("train: %g epochs of %d examples are %d steps", train.epochs, epoch, config.train.steps)
    _check_fields(config.train, config.loop.keep_steps)
    traced(config.profile.steps, config.train.steps)
    return config


def planned(run: Run, config: ConfigDict, step: int | None, measure: Callable[[], float]) -> ConfigDict:
    """The config with the steps after which training ends, and with those that its learning rates are planned for.

    The stage's record keeps both, so that a run that is resumed ends as planned, however long a step takes then. One
    that is asked for fewer ends after these, with the learning rates of its plan.

    Args:
      config: that of the run, with the steps that `train.epochs` is.
      step: the newest checkpoint, or None.
      measure: gives the seconds of a step. Every host calls it.
    """
    config = config.copy_and_resolve_references()
    train, asked = config.train, [run.config.train[name] for name in _LENGTH]
    record = hosts.on_first(lambda: records.read_own_record(run, "train") or {})
    plan = record.get("planned")
    if not plan or plan["asked"] != asked:
        steps = _in_time(train, measure()) if train.minutes and train.steps else train.steps
        if plan and step is not None:
            steps, schedule = max(step, min(steps, plan["steps"])), plan["schedule"]
            _log.info("train: ends after step %d of the %d that were planned, and is at %d", steps, plan["steps"], step)
        else:
            steps = max(step or 0, steps)
            schedule = train.schedule_steps or steps
        plan = hosts.on_first(lambda: {"asked": asked, "steps": steps, "schedule": schedule})
        if record:
            hosts.on_first(lambda: records.write_record(run, "train", record | {"planned": plan}))
    train.steps = plan["steps"]
    train.schedule_steps = plan["schedule"] if plan["schedule"] != plan["steps"] else 0
    return config


def _in_time(train: ConfigDict, seconds: float) -> int:
    """The steps that `train.minutes` have room for, of those that there are at most."""
    steps = min(train.steps, max(1, int(60 * train.minutes / seconds)))
    _log.info(
        "train: a step takes %.3g s here, so %d of %d steps are trained, in %.3g minutes (config.train.minutes=%g)",
        *(seconds, steps, train.steps, steps * seconds / 60, train.minutes),
    )
    return steps


def warn(train: ConfigDict) -> None:
    """Tells the log which batches change nothing, by the group `train` of the config."""
    updates, rest = divmod(train.steps, train.accumulation)
    if updates == 1 and train.warmup_ratio and not train.schedule_steps:
        _log.warning(
            "train: one update alone, and the rate of the first is 0 (config.train.warmup_ratio=%g): nothing changes",
            train.warmup_ratio,
        )
    if updates and rest:
        _log.warning(
            "train: the last %d batches make no whole update of config.train.accumulation=%d, and change nothing",
            rest,
            train.accumulation,
        )


def traced(asked: Sequence[int], last: int) -> tuple[int, int]:
    """The first and the last step of the trace, 0 and 0 for none.

    Raises:
      UserError: they are not two, or not steps of the run.
    """
    steps = tuple(asked) or (0, 0)
    if len(steps) != 2 or (any(steps) and not 0 < steps[0] <= steps[1] <= last):
        raise UserError(
            f"config.profile.steps={','.join(map(str, steps))}: the first and the last step of the trace are needed, "
            f"such as 10,15, and at most config.train.steps={last}"
        )
    return steps


def _check_fields(train: ConfigDict, keep_steps: Sequence[int]) -> None:
    """Checks the fields of `config.train` that depend on the number of steps."""
    if 0 < train.schedule_steps < train.steps and train.schedule != "constant":
        raise UserError(
            f"config.train.schedule_steps={train.schedule_steps} ends before config.train.steps={train.steps}, with a "
            "learning rate of 0 from there on: raise it, or set 0"
        )
    if train.clip_parts and not (train.clip_norm and train.accumulation > 1):
        raise UserError(
            "config.train.clip_parts=True clips between the batches of an update: set config.train.clip_norm above 0 "
            "and config.train.accumulation above 1, or config.train.clip_parts=False"
        )
    if 0 < train.steps < train.accumulation:
        raise UserError(
            f"config.train.accumulation={train.accumulation} is more than config.train.steps={train.steps}, which are "
            "batches: nothing would ever be updated; lower it, or raise the steps"
        )
    late = [step for step in keep_steps if step > train.steps]
    if late:
        raise UserError(
            f"config.loop.keep_steps has {late[0]}, after the last step, config.train.steps={train.steps}: leave it "
            "out, or raise the steps"
        )
