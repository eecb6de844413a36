"""Labelled pairs that are made anew while a model trains, with the model as it is then: hard negatives (ANCE, Xiong et
al. 2021), batches by clusters (ProQA, Xiong et al. 2020), or what else is in `refresh_kind.REFRESHES`.

Version v of the labelled pairs is made from the parameters after step v * config.mine.refresh_every, on the training
mesh, and the next batch is of it. A checkpoint says which version its position belongs to. A run that goes on from one
which a refresh follows begins with that refresh, or with the version that is complete.

A run in two phases (Liu et al. 2021, QuadrupletBERT, section 2.4) refreshes for the first time when training has
converged: its validation score has not risen for config.mine.patience validations. Then the parameters go back to
those of the best step, and the optimizer starts afresh. The checkpoint of that step has what the second phase begins
with, and the log of training has the scores that tell which step it was. So a run that is cut off goes on as if it had
not been.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from retrieval.errors import UserError
from retrieval.recipes import train_state
from retrieval.recipes.towers import Embedder
from retrieval.runtime import hosts
from retrieval.stages import versions
from retrieval.stages.refresh_kind import kind_of
from retrieval.stages.training_setup import Setup
from retrieval.stages.versions import Schedule, Versions
from retrieval.training.checkpoint import Checkpointer
from retrieval.training.loop import TrainState

_log = logging.getLogger(__name__)

# The fields of the config that decide what a refresh makes, and when.
SETTINGS = ("mine.refresh_makes", "mine.refresh_every", "mine.patience", "mine.turn_rate")


def check(config: ConfigDict) -> None:
    """Checks that a refresh would come, and change something, and what it makes."""
    mine, steps = config.mine, config.train.steps
    if mine.patience and not config.loop.validate_every:
        raise UserError(
            f"config.mine.patience={mine.patience} counts validations, and config.loop.validate_every=0 makes none: "
            "set the steps from one to the next, or config.mine.patience=0"
        )
    if mine.refresh_every and not mine.patience and mine.refresh_every >= steps:
        raise UserError(
            f"config.mine.refresh_every={mine.refresh_every} never comes in config.train.steps={steps}: lower it, or "
            "set 0 for no refresh"
        )
    if mine.turn_rate and config.train.schedule != "linear":
        raise UserError(
            f"config.mine.turn_rate={mine.turn_rate:g} plans a linear schedule anew, and config.train.schedule="
            f"{config.train.schedule} is another: set that to linear, or config.mine.turn_rate=0"
        )
    if mine.refresh_every:
        kind_of(mine.refresh_makes).check(config)


class SecondPhase:
    """Notices that training has converged, and gives the state that the second phase begins with.

    Attributes:
      step: after which it begins, or None where it has not.
    """

    def __init__(
        self, config: ConfigDict, history: Iterable[tuple[int, Mapping[str, float]]], checkpoints: Checkpointer
    ):
        """Takes up the scores of a run that goes on: step and metrics of the lines that it has logged up to there."""
        self._config, self._checkpoints = config, checkpoints
        self._patience, self._measure = config.mine.patience, config.loop.best
        name = f"validation/{self._measure}"
        validated = [(step, metrics[name]) for step, metrics in history if step and name in metrics]
        self._scores = [score for _, score in validated]
        steps = (step for count, (step, _) in enumerate(validated, 1) if self._has_converged(self._scores[:count]))
        self.step: int | None = next(steps, None)

    def __call__(self, step: int, state: TrainState, scores: Mapping[str, float]) -> TrainState:
        """To be called after a validation; gives another state where the second phase begins.

        Raises:
          UserError: the checkpoint of the best step is damaged.
        """
        if self.step is not None:
            return state
        self._scores.append(scores[self._measure])
        if not self._has_converged(self._scores):
            return state
        best = self._checkpoints.best_step()
        assert best is not None, "the validations before have left one"
        params = state.restored(self._checkpoints, step=best).params
        self.step = step
        _log.info(
            "step %d: %s has not risen for %d validations; from here on with the parameters of step %d, a new "
            "optimizer, and what is mined with them",
            *(step, self._measure, self._patience, best),
        )
        return train_state.afresh(self._config, state, params)

    def _has_converged(self, scores: Sequence[float]) -> bool:
        return len(scores) - 1 - scores.index(max(scores)) >= self._patience


class Refresh:
    """Turns batches to versions that are made with the parameters of the run."""

    def __init__(self, setup: Setup, batches: Versions, checkpoints: Checkpointer, phase: SecondPhase | None):
        """Makes the refreshes of a run.

        Args:
          checkpoints: those of the run; versions that none of them belongs to are deleted.
          phase: what the first of them waits for, if not for a number of steps.
        """
        self._setup, self._batches, self._checkpoints, self._phase = setup, batches, checkpoints, phase
        self._embedder = Embedder(setup.run.config, setup.vocabulary, setup.mesh)

    def __call__(self, step: int, params: Any) -> dict[str, float]:
        """To be called between steps, with the number of those that are done and the parameters after them.

        A version that is there already, because the run was cut off behind it, is not made again. Unless it is of
        another step: a second phase may begin at another one than before.

        Returns:
          Numbers for the log where the batches have turned to another version, else none.

        Raises:
          UserError: the version cannot be made.
        """
        run, vocabulary, mesh = self._setup.run, self._setup.vocabulary, self._setup.mesh
        every = run.config.mine.refresh_every
        first = self._phase.step if self._phase else every
        if first is None:
            return {}
        when = Schedule(first, every)
        version = when.newest(step)
        if not version or step != when.made_after(version):
            return {}
        steps = self._checkpoints.steps
        hosts.on_first(lambda: versions.drop_unneeded(run.folder, version, when, steps()))
        if not hosts.on_first(lambda: versions.is_there(run.folder, version, step)):
            versions.make(run, vocabulary, self._embedder, mesh, params, version, step)
        self._batches.turn_to(version)
        words, numbers = kind_of(run.config.mine.refresh_makes).told(versions.statistics(run.folder, version))
        _log.info("step %d: %s, version %d", step, words, version)
        return numbers
