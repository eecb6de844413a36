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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval.common.runtime import hosts
from retrieval.data.tokenizers.prefixes import Prefixes
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.recipes.towers import Embedder
from retrieval.runs.fitting import versions
from retrieval.runs.fitting.training_setup import Setup
from retrieval.runs.fitting.versions import Counts, RefreshedPairs, RefreshInputs, Schedule, Write
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import train_state
from retrieval.training.checkpoint import Checkpointer
from retrieval.training.loop import TrainState

_log = logging.getLogger(__name__)

Logged = Iterable[tuple[int, Mapping[str, float]]]  # steps, with the metrics of each


class RefreshKind:
    """A kind of refresh. One of your own overrides `make` and `summary`, and what else differs.

    Attributes:
      name: in `config.mine.refresh_makes`, and in messages: a plural, such as 'negatives'.
      what: it is, in a line.
      needs: the stages that it reads besides `pairs`.

    Fields of its own go with `mine.refresh_makes`, and have a group of their own.
    """

    name: str
    what: str
    needs: tuple[str, ...] = ()

    def check(self, config: ConfigDict) -> None:
        """Checks the config of a run that refreshes.

        Raises:
          UserError: fields do not fit each other.
        """

    def check_run(self, run: Run) -> None:
        """Checks, before the first stage of a run begins, that there will be what it reads."""

    def check_pairs(self, config: ConfigDict, pairs: Path) -> None:
        """Checks, before training begins, that a version can be made of the run's labelled pairs, in shards."""

    def check_version(self, pairs: Path, folder: Path, counts: Counts) -> None:
        """Checks that a version which is there was made from the run's labelled pairs as they are now.

        Args:
          pairs: the folder of these.
          folder: that of the version.
          counts: what was counted when it was made.
        """

    def batches(self, run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh) -> RefreshedPairs:
        """Batches of version 0, which turn to others."""
        return RefreshedPairs(self, run, vocabulary, mesh)

    def hook(self, setup: Setup, checkpoints: Checkpointer, phase: "SecondPhase | None") -> "Refresh":
        """What the loop calls between steps."""
        return Refresh(self, setup, checkpoints, phase)

    def second_phase(self, config: ConfigDict, history: Logged, checkpoints: Checkpointer) -> "SecondPhase | None":
        """What the loop calls after validations; None where the first refresh comes after a number of steps."""
        return SecondPhase(config, history, checkpoints) if config.mine.patience else None

    def make(self, run: Run, inputs: RefreshInputs, publish: Callable[[Write], None]) -> None:
        """Makes a version. Every process of the mesh takes its part.

        Its randomness is of the run's seed and the version alone.

        Args:
          publish: is called once, with what writes the shards and their `stats.json`; the first host does so, whole or
            not at all. Where the order of the shards is that of the batches, `StoredPairs.write` writes them.

        Raises:
          UserError: no batch would come of it.
        """
        raise NotImplementedError(f"the refresh '{self.name}' makes nothing")

    def summary(self, counts: Counts) -> tuple[str, dict[str, float]]:
        """What the log says of a version, from what was counted: in words, and as numbers by their names."""
        raise NotImplementedError(f"the refresh '{self.name}' tells nothing")


class SecondPhase:
    """Notices that training has converged, and gives the state that the second phase begins with.

    Attributes:
      step: after which it begins, or None where it has not.
    """

    def __init__(self, config: ConfigDict, history: Logged, checkpoints: Checkpointer):
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
        what = "from here on with its parameters, a new optimizer, and what is mined with them"
        _log.info("step %d: %s has not risen since step %d; %s", step, self._measure, best, what)
        return train_state.afresh(self._config, state, params)

    def _has_converged(self, scores: Sequence[float]) -> bool:
        return len(scores) - 1 - scores.index(max(scores)) >= self._patience


class Refresh:
    """Turns batches to versions that are made with the parameters of the run."""

    def __init__(self, kind: RefreshKind, setup: Setup, checkpoints: Checkpointer, phase: SecondPhase | None):
        """Makes the refreshes of a run.

        Args:
          checkpoints: those of the run; versions that none of them belongs to are deleted.
          phase: what the first of them waits for, if not for a number of steps.
        """
        assert isinstance(setup.batches, RefreshedPairs), "`RefreshKind.batches` gave them"
        self._kind, self._setup, self._checkpoints, self._phase = kind, setup, checkpoints, phase
        self._batches = setup.batches
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
        first = self._phase.step if self._phase else run.config.mine.refresh_every
        if first is None:
            return {}
        when = Schedule(first, run.config.mine.refresh_every)
        version = when.newest(step)
        if not version or (step - when.first) % when.every:  # not the step after which one is made
            return {}
        hosts.on_first(lambda: versions.drop_unneeded(run.folder, version, when, self._checkpoints.steps()))
        if not hosts.on_first(lambda: versions.is_there(run.folder, version, step)):
            prefixes = Prefixes.of(run.config.data, vocabulary)
            inputs = RefreshInputs(vocabulary, prefixes, self._embedder, mesh, params, version)
            versions.make(self._kind, run, inputs, step)
        self._batches.turn_to(version)
        summary, numbers = self._kind.summary(versions.statistics(run.folder, version))
        _log.info("step %d: %s, version %d", step, summary, version)
        return numbers
