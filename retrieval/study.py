"""A study: a table of runs, each a plain `retrieval.main` run in a folder of its own, and their results side by side.

    python -m retrieval.study --config=configs/studies/pretraining_tasks.py:local --workdir=runs/tasks \\
        --config.corpus=DUMP.xml.bz2 --config.vocab=vocab.txt --config.questions=dev-v1.1.json

A run may name others of the table as its `base` and its `train.init_from`: it starts when they are finished, so what
runs share is done once. Called again, a study goes on: finished runs are skipped, failed ones are tried again.
"""

import atexit
import functools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags
from absl import logging as absl_logging
from ml_collections import ConfigDict

from retrieval.cli import command_line
from retrieval.errors import UserError
from retrieval.runtime.store import is_url
from retrieval.studies import run_table, study_report
from retrieval.studies.claims import Report
from retrieval.studies.run_table import Entry
from retrieval.studies.study_results import Results

_log = logging.getLogger("retrieval.study")  # also where the module is the program

_ONLY = flags.DEFINE_list("only", ["*"], "Runs of the study to do, with those that they need: names or patterns, a,b*.")
_LIST = flags.DEFINE_bool("list", False, "Prints the runs of the study and which are done, and does none.")
_POLL_SECONDS = 0.2
_LOG = "log.txt"


def main(argv: Sequence[str]) -> int:
    """Does the runs that are not finished, writes the study's report; returns 1 where a run failed."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    command_line.refuse_arguments(argv)
    config, workdir = command_line.CONFIG.value, command_line.WORKDIR.value
    if config is None or "runs" not in config or "stages" in config:
        raise UserError("--config is missing, or not that of a study: configs/studies/pretraining_tasks.py:local")
    if not workdir:
        raise UserError("--workdir is missing: the folder to write to, such as --workdir=runs/tasks")
    if type(config.get("parallel")) is not int or config.parallel < 1:
        raise UserError(f"config.parallel={config.get('parallel')}: a whole number of at least 1 is needed")
    if is_url(workdir):
        raise UserError(
            f"--workdir={workdir}: the runs of a study share a folder, which must be on a disk; a run by itself may be "
            "on a store: python -m retrieval.main --workdir=gs://BUCKET/RUN"
        )
    folder, report = Path(workdir), report_of(config)
    table = run_table.read_table(config, folder)
    report.check_runs(table)
    chosen, done = run_table.select(table, _ONLY.value), run_table.finished(table)
    run_table.check_table(chosen)
    if _LIST.value:
        print("\n".join(f"{'done' if name in done else 'to do'}\t{name}" for name in chosen))
        return 0
    run_table.take_table(table, folder)
    run_table.check_sources(config, [entry for name, entry in chosen.items() if name not in done])

    def write_report(done: set[str]) -> None:
        study_report.write_study(folder, report, Results(folder, done, run_table.pretrainings(table)))

    execution = Execution(chosen, config.parallel, done)
    execution.run(lambda: _try(lambda: write_report(execution.done)))
    write_report(execution.done)
    for name, reason in execution.failed.items():
        _log.error("%s: %s", name, reason)
    _log.info("report: %s", folder / "study.md")
    return 1 if execution.failed else 0


def report_of(config: ConfigDict) -> Report:
    """What the study's config says to show.

    Raises:
      UserError: it says nothing.
    """
    if not isinstance(report := config.get("report"), Report):
        raise UserError("config.report is missing: give the study a Report of retrieval.studies.claims")
    return report


class _Running(NamedTuple):
    name: str
    process: subprocess.Popen
    cores: set[int]
    began: float


class Execution:
    """Does the runs of a table, some at a time; a failed one is reported and the rest carried on.

    Attributes:
      done: the names of the finished runs, those of the study that are not chosen too.
      failed: the runs that failed, or that need one that did: name -> why.
    """

    def __init__(self, table: Mapping[str, Entry], parallel: int, done: set[str]):
        """Args: parallel: how many runs go on at a time, each on its share of the cores."""
        self.done, self.failed = done, dict[str, str]()
        self._table = table
        self._waiting = [table[name] for name in sorted(table.keys() - done)]
        self._running: list[_Running] = []
        # Two runs on the same cores wait for each other's threads.
        cores = sorted(os.sched_getaffinity(0))
        self._free = [set(cores[i::parallel]) or set(cores) for i in range(parallel)]

    def run(self, after_each: Callable[[], None]) -> None:
        """Does everything that is not finished; the runs that go on are ended when this one is interrupted.

        It is over when they are gone: a study that starts then finds no folder taken.
        """
        _log.info("%d runs, of which %d are finished", len(self._table), len(self._table) - len(self._waiting))
        try:
            while self._waiting or self._running:
                self._start()
                for running in [r for r in self._running if r.process.poll() is not None]:
                    self._collect(running)
                    after_each()
                time.sleep(_POLL_SECONDS)
        finally:
            for running in self._running:
                running.process.terminate()
            for running in self._running:
                running.process.wait()

    def _start(self) -> None:
        for entry in list(self._waiting):
            if missing := self.failed.keys() & set(entry.needs):
                self._waiting.remove(entry)
                self.failed[entry.name] = f"not started, it needs {', '.join(missing)}"
            elif self._free and self.done >= set(entry.needs):
                self._waiting.remove(entry)
                cores = self._free.pop()
                self._running.append(_Running(entry.name, _start(entry, cores), cores, time.perf_counter()))

    def _collect(self, running: _Running) -> None:
        self._running.remove(running)
        self._free.append(running.cores)
        seconds = time.perf_counter() - running.began
        if running.process.returncode == 0:
            self.done.add(running.name)
            _log.info("%s: done in %.0f s; %d more wait", running.name, seconds, len(self._waiting))
        else:
            log = self._table[running.name].run.folder / _LOG
            self.failed[running.name] = _why(log, running.process.returncode)
            _log.error("%s failed after %.0f s: %s", running.name, seconds, self.failed[running.name])


def _try(write: Callable[[], None]) -> None:
    """What a run of the study has that cannot be shown ends no other."""
    try:
        write()
    except UserError as error:
        _log.warning("the report could not be written: %s", error)


def _start(entry: Entry, cores: set[int]) -> subprocess.Popen:
    """Starts a run on some cores; what it prints goes to log.txt in its folder."""
    command = [sys.executable, "-m", "retrieval.studies.one_run", f"--workdir={entry.run.folder}"]
    # Runs of one study compile the same functions.
    cache = {"JAX_COMPILATION_CACHE_DIR": _compiled()}
    with open(entry.run.folder / _LOG, "w", encoding="utf-8") as log:
        # Its standard input is closed when this process is gone, however it ends.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=os.environ | cache
        )
    os.sched_setaffinity(process.pid, cores)  # before Python has started any thread
    return process


@functools.cache
def _compiled() -> str:
    """A folder for compiled functions, for as long as this process lives: JAX runs what it finds there unseen."""
    folder = tempfile.mkdtemp(prefix="retrieval-compiled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _why(log: Path, status: int) -> str:
    """The last error of a run's log."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    ending = f"killed by signal {-status}" if status < 0 else (errors or lines or ["no output"])[-1]
    return f"{ending} (all of it: {log})"


if __name__ == "__main__":
    command_line.run(main, computes=True)
