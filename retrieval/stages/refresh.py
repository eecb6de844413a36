"""Labelled pairs that are made anew while a model trains, with the model as it is then: hard negatives (ANCE, Xiong et
al. 2021), batches by clusters (ProQA, Xiong et al. 2020), or what else is in `refresh_kind.REFRESHES`.

Version v of the labelled pairs is made from the parameters after step v * config.mine.refresh_every, on the training
mesh, and the next batch is of it. A checkpoint says which version its position belongs to. A run that goes on from one
which a refresh follows begins with that refresh, or with the version that is complete.
"""

import logging
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.pipeline.run import Run
from retrieval.recipes.towers import Embedder
from retrieval.runtime import hosts
from retrieval.stages import turn, versions
from retrieval.stages.refresh_kind import kind_of
from retrieval.stages.turn import Turn
from retrieval.stages.versions import Schedule, Versions
from retrieval.training.checkpoint import Checkpointer

_log = logging.getLogger(__name__)

# The fields of the config that decide what a refresh makes, and when.
SETTINGS = ("mine.refresh_makes", "mine.refresh_every", "mine.patience", "mine.turn_rate")


def needs(makes: str, every: int) -> tuple[str, ...]:
    """The stages that training reads besides its pairs, by the fields of `config.mine` that begin with `refresh`."""
    return kind_of(makes).needs if every else ()


def check(config: ConfigDict) -> None:
    """Checks that a refresh would come, and change something, and what it makes."""
    _check_schedule(config.mine, config.train.steps, config.loop.validate_every)
    if config.mine.turn_rate and config.train.schedule != "linear":
        raise UserError(
            f"config.mine.turn_rate={config.mine.turn_rate:g} plans a linear schedule anew, and config.train.schedule="
            f"{config.train.schedule} is another: set that to linear, or config.mine.turn_rate=0"
        )
    if config.mine.refresh_every:
        kind_of(config.mine.refresh_makes).check(config)


def _check_schedule(mine: ConfigDict, steps: int, validate_every: int) -> None:
    """Checks when refreshes come, by the group `mine` of the config."""
    if mine.turn_rate and not mine.patience:
        raise UserError(
            f"config.mine.turn_rate={mine.turn_rate} is of a second phase, and config.mine.patience=0 makes none: set "
            "the validations that it waits for, or config.mine.turn_rate=0"
        )
    if mine.patience and not mine.refresh_every:
        raise UserError(
            "config.mine.patience is of refreshes, and config.mine.refresh_every=0 makes none: set the steps from one "
            "to the next, or leave it out"
        )
    if mine.patience:
        turn.check(mine.patience, validate_every)
    elif mine.refresh_every and mine.refresh_every >= steps:
        raise UserError(
            f"config.mine.refresh_every={mine.refresh_every} never comes in config.train.steps={steps}: lower it, or "
            "set 0 for no refresh"
        )


class Refresh:
    """Turns batches to versions that are made with the parameters of the run."""

    def __init__(
        self,
        run: Run,
        vocabulary: Vocabulary,
        mesh: jax.sharding.Mesh,
        batches: Versions,
        checkpoints: Checkpointer,
        turn: Turn | None = None,
    ):
        """Makes the refreshes of a run.

        Args:
          checkpoints: those of the run; versions that none of them belongs to are deleted.
          turn: what the first of them waits for, if not for a number of steps.
        """
        self._run, self._vocabulary, self._mesh = run, vocabulary, mesh
        self._embedder = Embedder(run.config, vocabulary, mesh)
        self._batches, self._checkpoints, self._turn = batches, checkpoints, turn

    def __call__(self, step: int, params: Any) -> dict[str, float]:
        """To be called between steps, with the number of those that are done and the parameters after them.

        A version that is there already, because the run was cut off behind it, is not made again. Unless it is of
        another step: a turn may come at another one than before.

        Returns:
          Numbers for the log where the batches have turned to another version, else none.

        Raises:
          UserError: the version cannot be made.
        """
        run, every = self._run, self._run.config.mine.refresh_every
        first = self._turn.step if self._turn else every
        if first is None:
            return {}
        when = Schedule(first, every)
        version = when.newest(step)
        if not version or step != when.made_after(version):
            return {}
        steps = self._checkpoints.steps
        hosts.on_first(lambda: versions.drop_unneeded(run.folder, version, when, steps()))
        if not hosts.on_first(lambda: versions.is_there(run.folder, version, step)):
            versions.make(run, self._vocabulary, self._embedder, self._mesh, params, version, step)
        self._batches.turn_to(version)
        words, numbers = kind_of(run.config.mine.refresh_makes).told(versions.statistics(run.folder, version))
        _log.info("step %d: %s, version %d", step, words, version)
        return numbers
