"""Labelled pairs that are made anew while a model trains, with the model as it is then: hard negatives (ANCE, Xiong et
al. 2021), batches by clusters (ProQA, Xiong et al. 2020), or what else is in `refresh_kind.REFRESHES`.

Version v of the labelled pairs is made from the parameters after step v * config.mine.refresh_every, and the batches
are of it from config.mine.refresh_lag steps later on. Without a lag the training mesh makes it, and training waits.
With one, a second process does so meanwhile (section 4 of ANCE), from the checkpoint of that step; training waits at
the end of the lag alone, and which batches it sees depends on nobody's speed.

A checkpoint says which version its position belongs to. Whoever goes on from one within a lag, both ends included,
begins with the refresh, or with the version that is complete.
"""

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError, unknown_name
from retrieval.recipes.towers import Embedder
from retrieval.runtime import ending, hosts, signals
from retrieval.stage_outputs import Run
from retrieval.stages import turn, versions
from retrieval.stages.refresh_kind import kind_of
from retrieval.stages.turn import Turn
from retrieval.stages.versions import Schedule, Versions
from retrieval.training.pod_checkpoints import Checkpoints

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2

# The share of a GPU's memory, under its name and the one that it had before; JAX refuses both at a time.
_MEMORY = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")

# What may differ in the second process: which devices it has, and how much of their memory. No other variable: what the
# config of a stranger's work directory names must not run.
_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES"),
    *("TPU_VISIBLE_CHIPS", "TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_PORT"),
    *("TPU_PROCESS_ADDRESSES", *_MEMORY, "XLA_PYTHON_CLIENT_PREALLOCATE"),
)

# The fields of the config that decide what a refresh makes, and when.
SETTINGS = ("mine.refresh_makes", "mine.refresh_every", "mine.refresh_lag", "mine.patience", "mine.turn_rate")


def needs(makes: str, every: int) -> tuple[str, ...]:
    """The stages that training reads besides its pairs, by the fields of `config.mine` that begin with `refresh`."""
    return kind_of(makes).needs if every else ()


def check(config: ConfigDict) -> None:
    """Checks that a refresh would come, and change something, and what it makes.

    Raises:
      UserError: it would not; or the next one would come before it; or as `RefreshKind.check`.
    """
    _check_schedule(config.mine, config.train.steps, config.loop.validate_every)
    if config.mine.refresh_every:
        kind_of(config.mine.refresh_makes).check(config)


def _check_schedule(mine: ConfigDict, steps: int, validate_every: int) -> None:
    """Checks when refreshes come, by the group `mine` of the config."""
    if mine.turn_rate and not mine.patience:
        raise UserError(
            f"config.mine.turn_rate={mine.turn_rate} is of a second phase, and config.mine.patience=0 makes none: set "
            "the validations that it waits for, or config.mine.turn_rate=0"
        )
    if not mine.refresh_every:
        for field in ("refresh_lag", "refresh_env", "patience"):
            if mine[field]:
                raise UserError(
                    f"config.mine.{field} is of refreshes, and config.mine.refresh_every=0 makes none: set the steps "
                    "from one to the next, or leave it out"
                )
        return
    _check_environment(mine.refresh_env, every=mine.refresh_every, lag=mine.refresh_lag)
    if mine.patience:
        turn.check(mine.patience, validate_every, mine.refresh_lag)
        return
    if mine.refresh_every >= steps:
        raise UserError(
            f"config.mine.refresh_every={mine.refresh_every} never comes in config.train.steps={steps}: lower it, or "
            "set 0 for no refresh"
        )
    if mine.refresh_lag >= mine.refresh_every:
        raise UserError(
            f"config.mine.refresh_lag={mine.refresh_lag}: the next refresh, config.mine.refresh_every="
            f"{mine.refresh_every} steps later, begins before; lower the first, or raise the second"
        )
    if mine.refresh_every + mine.refresh_lag >= steps:
        raise UserError(
            f"config.mine.refresh_lag={mine.refresh_lag}: what is made after config.mine.refresh_every="
            f"{mine.refresh_every} steps would never be trained on in config.train.steps={steps}; lower one of them"
        )


def _check_environment(settings: Sequence[str], every: int, lag: int) -> None:
    for setting in settings:
        name, equals, _ = setting.partition("=")
        if not equals:
            raise UserError(
                f"config.mine.refresh_env: '{setting}' sets no variable: write NAME=VALUE, such as "
                "--config.mine.refresh_env=\"('CUDA_VISIBLE_DEVICES=1',)\""
            )
        if name not in _VARIABLES:
            raise unknown_name("variable in config.mine.refresh_env", name, _VARIABLES)
    if settings and not lag:
        raise UserError(
            "config.mine.refresh_env is of the process that refreshes while training goes on, and there is none with "
            "config.mine.refresh_lag=0: set the steps that it has for that, such as config.mine.refresh_lag="
            f"{max(1, every // 2)}, or leave the variables out"
        )


class Refresh:
    """Turns batches to versions that are made with the parameters of the run."""

    def __init__(
        self,
        run: Run,
        vocabulary: Vocabulary,
        mesh: jax.sharding.Mesh,
        batches: Versions,
        checkpoints: Checkpoints,
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
        self._begun = 0
        self._inferencer: Inferencer | None = None

    def __call__(self, step: int, params: Any) -> dict[str, float]:
        """To be called between steps, with the number of those that are done and the parameters after them.

        Returns:
          Numbers for the log where the batches have turned to another version, else none.

        Raises:
          UserError: the version cannot be made.
        """
        mine, when = self._run.config.mine, versions.schedule(self._run.config.mine)
        if self._turn:
            if self._turn.step is None:
                return {}
            when = when._replace(first=self._turn.step)
        version = when.newest(step)
        last = when.made_after(version) + when.lag
        if not version or step > last or last >= self._run.config.train.steps:
            return {}
        if version > self._begun:
            self._begin(version, step, params, when)
            self._begun = version
        if step < last:
            if self._inferencer:
                self._inferencer.is_done()  # or has failed: that is to be known now
            return {}
        if mine.refresh_lag:
            self._checkpoints.wait()  # the second process waits for one of them, which may have failed
            hosts.on_first(self._await)
        self._batches.turn_to(version)
        words, numbers = kind_of(mine.refresh_makes).told(versions.statistics(self._run.folder, version))
        _log.info("step %d: %s, version %d", step, words, version)
        return numbers

    def _begin(self, version: int, step: int, params: Any, when: Schedule) -> None:
        """A version that is there already, because the run was cut off behind it, is not made again.

        Unless it is of another step: a turn may come at another one than before.
        """
        run, source = self._run, when.made_after(version)
        steps = self._checkpoints.steps
        hosts.on_first(lambda: versions.drop_unneeded(run.folder, version, when, steps()))
        if hosts.on_first(lambda: versions.is_there(run.folder, version, source)):
            return
        if run.config.mine.refresh_lag:
            hosts.on_first(lambda: self._start(version, step, source))
        else:
            versions.make(run, self._vocabulary, self._embedder, self._mesh, params, version, step)

    def _start(self, version: int, step: int, source: int) -> None:
        """The second process begins; where the run goes on within a lag, with the checkpoint that lies before."""
        if step > source and source not in self._checkpoints.steps():
            raise UserError(
                f"{self._run.checkpoints}: version {version} of the {self._run.config.mine.refresh_makes} is made with "
                f"the parameters after step {source}, and neither of the two is there (was config.mine.refresh_every "
                "another one?); delete the checkpoints behind it, and train again"
            )
        self._inferencer = Inferencer(self._run.folder, self._run.lock, self._run.config.mine, version)

    def _await(self) -> None:
        if self._inferencer:
            self._inferencer.wait()
            self._inferencer = None


class Inferencer:
    """The process that makes a version while training goes on, in ANCE's word; it ends with this one."""

    def __init__(self, folder: Path, lock: Path, fields: ConfigDict, version: int):
        """Starts it, for a work directory; `fields` are those of `config.mine`."""
        self._what = f"{fields.refresh_makes}, version {version}"
        self._log = folder / "refresh.log"
        self._began, self._seconds = time.perf_counter(), 0.0
        command = [sys.executable, "-m", "retrieval.stages.refresh_process", f"--workdir={folder}"]
        with self._log.open("w", encoding="utf-8") as log:
            # Its standard input is closed when this process is gone, however it ends.
            self._process = subprocess.Popen(
                [*command, str(lock), str(version)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(fields.refresh_env),
            )
        _log.info("%s: process %d begins, see %s", self._what, self._process.pid, self._log)

    def is_done(self) -> bool:
        """Whether the version is there.

        Raises:
          UserError: the process failed.
        """
        code = self._process.poll()
        if code not in (None, 0, signals.EXIT_CODE):
            raise UserError(
                f"{self._what}: the process that makes them {self._why(code)}; all that it said "
                f"is in {self._log}; once that is mended, the same command goes on from the newest checkpoint"
            )
        if code == 0 and not self._seconds:
            self._seconds = time.perf_counter() - self._began
            _log.info("%s: there after %.0f s", self._what, self._seconds)
        return code == 0

    def wait(self) -> None:
        """Returns when the version is there.

        Raises:
          UserError: as `is_done` does.
          PreemptedError: one of the two processes, or one of another host, was told to stop.
        """
        began = time.perf_counter()
        if not self.is_done():
            _log.info("%s: training waits for them", self._what)
        while not self.is_done():
            if ending.is_stopping() or self._process.poll() == signals.EXIT_CODE:
                raise signals.PreemptedError(f"interrupted while {self._what}, were made")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_SECONDS)
        _log.info("%s: training waited %.1f s", self._what, time.perf_counter() - began)

    def _why(self, code: int) -> str:
        if code < 0:
            return f"was killed by signal {-code} (9 is most often a lack of memory)"
        lines = [line for line in self._log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return f"failed: {(lines or ['no output'])[-1].removeprefix('error: ')}"


def _environment(settings: Sequence[str]) -> dict[str, str]:
    """This process's, with what config.mine.refresh_env changes in it."""
    changes = dict(setting.split("=", 1) for setting in settings)
    inherited = [name for name in os.environ if name not in _MEMORY or changes.keys().isdisjoint(_MEMORY)]
    return {name: os.environ[name] for name in inherited} | changes
