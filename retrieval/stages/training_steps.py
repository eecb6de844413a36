"""How many steps a run trains, and what else its config counts in steps."""

import logging
import math
from collections.abc import Sequence

from ml_collections import ConfigDict

from retrieval.errors import UserError

_log = logging.getLogger(__name__)


def check(train: ConfigDict, keep_steps: Sequence[int], traced_steps: Sequence[int], refresh_every: int) -> None:
    """Checks what the config says about steps.

    Args:
      train: its group of that name.
      traced_steps: of `config.profile`.

    Raises:
      UserError: no update would ever come, or there is no such trace, or the learning rate ends before the run.
    """
    if not train.epochs:
        _check_fields(train, keep_steps)
        traced(traced_steps, train.steps)
    elif refresh_every:
        raise UserError(
            f"config.train.epochs={train.epochs:g} and config.mine.refresh_every={refresh_every}: refreshes are "
            "planned in steps: set config.train.steps, and config.train.epochs=0"
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
    if 0 < train.schedule_steps < train.steps:
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
