"""A study: a table of runs, each a plain `retrieval.main` run in a folder of its own, and their results side by side.

    python -m retrieval.study --config=configs/studies/pretraining_tasks.py:local --workdir=runs/tasks \\
        --config.corpus=DUMP.xml.bz2 --config.vocab=vocab.txt --config.questions=dev-v1.1.json

A run may name others of the table as its `base` and its `train.init_from`: it starts when they are finished, so what
runs share is done once. Called again, a study goes on: finished runs are skipped, failed ones are tried again.
"""

import atexit
import functools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import flags
from absl import logging as absl_logging
from ml_collections import ConfigDict

from retrieval.cli import command_line
from retrieval.data.sets import splits
from retrieval.data.sets.set_format import SETS
from retrieval.errors import UserError
from retrieval.recipes import examples
from retrieval.runtime.store import is_url
from retrieval.stage_outputs import Run
from retrieval.stages import prepare, sets
from retrieval.studies import claims, run_table, study_report
from retrieval.studies.run_table import Entry
from retrieval.studies.study_results import Results

_log = logging.getLogger("retrieval.study")  # also where the module is the program

_ONLY = flags.DEFINE_list("only", ["*"], "Runs of the study to do, with those that they need: names or patterns, a,b*.")
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
    parallel = config.get("parallel")
    if type(parallel) is not int or parallel < 1:
        raise UserError(f"config.parallel={parallel}: a whole number of at least 1 is needed, of runs at a time")
    if is_url(workdir):
        raise UserError(
            f"--workdir={workdir}: the runs of a study share a folder, which must be on a disk; a run by itself may be "
            "on a store: python -m retrieval.main --workdir=gs://BUCKET/RUN"
        )
    table = run_table.read_table(config, Path(workdir))
    run_table.check_table(table)
    read_report(config).check_runs(table)
    chosen, done = run_table.select(table, _ONLY.value), run_table.finished(table)
    check_sources(config, [entry for name, entry in chosen.items() if name not in done])
    run_table.take_table(table, Path(workdir))
    execution = Execution(chosen, parallel)
    execution.run(lambda: _try_report(config, Path(workdir), done | execution.done, execution.failed))
    write_report(config, Path(workdir), done | execution.done, execution.failed)
    for name, reason in execution.failed.items():
        _log.error("%s: %s", name, reason)
    _log.info("report: %s", Path(workdir) / "study.md")
    return 1 if execution.failed else 0


def check_sources(config: ConfigDict, entries: Sequence[Entry]) -> None:
    """Checks what the runs read from outside, in seconds: the first one that reads questions may come after days.

    Raises:
      UserError: a file is missing, or not what it should be; or SQuAD's questions are too few for a run's batch.
    """
    preview = functools.cache(lambda name, value: SETS[name].preview(value))
    runs = run_table.by_folder(entries)
    pairs: dict[str, int] = {}  # to train on, by the folder of the run that divides the questions
    for entry in entries:
        config_of_run = entry.run.config
        try:
            if "prepare" in config_of_run.stages:
                prepare.check_settings(config_of_run)
                prepare.check_files(config_of_run)
            if "sets" in config_of_run.stages:
                named, has_corpus = sets.formats(config_of_run), "prepare" in config_of_run.stages or bool(entry.needs)
                sets.check(named, config_of_run.split.set, has_base=bool(config_of_run.base), has_corpus=has_corpus)
                for form, field, _ in named:
                    value = preview(form.name, field)
                    if value and value.name == config_of_run.split.set:
                        _, training = splits.split(
                            value, config_of_run.split.ratio, config_of_run.split.validation, config_of_run.split.seed
                        )
                        pairs[str(entry.run.folder)] = sum(map(len, training.qrels[splits.TRAIN].values()))
        except UserError as error:
            empty = [f"config.{name}" for name, value in config.items() if value == ""]
            hint = f"; of the study: empty {', '.join(empty)}" if empty else ""
            raise UserError(f"run '{entry.name}' of the study: {error}{hint}") from error
        if "train" in config_of_run.stages:
            _check_labels(entry, runs, pairs)


def _check_labels(entry: Entry, runs: Mapping[str, Run], pairs: Mapping[str, int]) -> None:
    """A batch is not larger than what is left of a set to train on."""
    run = entry.run
    divides, labels = (run_table.holder(run, stage, runs) for stage in ("sets", "pairs"))
    if examples.unlabelled(run.config) or not (divides and labels) or labels.config.pairs.files:
        return
    labelled_pairs, batch_size = pairs.get(str(divides.folder)), run.config.train.batch_size
    if labelled_pairs is not None and labelled_pairs < batch_size:
        raise UserError(
            f"run '{entry.name}' of the study: config.split.ratio={divides.config.split.ratio} leaves {labelled_pairs} "
            f"labelled pairs to train on, fewer than config.train.batch_size={batch_size}: give more questions, "
            "such as SQuAD's train and dev files, or take a smaller batch"
        )


class Execution:
    """Does the runs of a table, some at a time; a failed one is reported and the rest carried on.

    Attributes:
      done: the names of the finished runs.
      failed: the runs that failed, or that need one that did: name -> why.
    """

    def __init__(self, table: Mapping[str, Entry], parallel: int):
        """Args: parallel: how many runs go on at a time, each on its share of the cores."""
        self.done = run_table.finished(table)
        self.failed: dict[str, str] = {}
        self._table = table
        self._waiting = [entry for name, entry in table.items() if name not in self.done]
        self._running: list[_Running] = []
        # Two runs on the same cores wait for each other's threads.
        cores = sorted(os.sched_getaffinity(0))
        self._free = [set(cores[i::parallel]) or set(cores) for i in range(parallel)]

    def run(self, after_each: Callable[[], None]) -> None:
        """Does everything that is not finished; the runs that go on are ended when this one is interrupted.

        It is over when they are gone: a study that starts then finds no folder taken.
        """
        _log.info("%d runs, of which %d are finished", len(self._table), len(self.done))
        try:
            while self._waiting or self._running:
                self._give_up()
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

    def _give_up(self) -> None:
        for entry in [entry for entry in self._waiting if self.failed.keys() & set(entry.needs)]:
            self._waiting.remove(entry)
            self.failed[entry.name] = f"not started, it needs {', '.join(self.failed.keys() & set(entry.needs))}"

    def _start(self) -> None:
        for entry in [entry for entry in self._waiting if self.done >= set(entry.needs)][: len(self._free)]:
            self._waiting.remove(entry)
            cores = self._free.pop()
            log = entry.run.folder / _LOG
            said = log.stat().st_size if log.exists() else 0
            self._running.append(_Running(entry.name, _start(entry, cores), cores, time.perf_counter(), said))

    def _collect(self, running: "_Running") -> None:
        self._running.remove(running)
        self._free.append(running.cores)
        seconds = time.perf_counter() - running.began
        if running.process.returncode == 0:
            self.done.add(running.name)
            _log.info("[%d/%d] %s: done in %.0f s", len(self.done), len(self._table), running.name, seconds)
        else:
            log = self._table[running.name].run.folder / _LOG
            self.failed[running.name] = _why(log, running.said, running.process.returncode)
            _log.error("%s failed after %.0f s: %s", running.name, seconds, self.failed[running.name])


@dataclass(frozen=True)
class _Running:
    """A run that has been started; `said` are the bytes that its log had from attempts before."""

    name: str
    process: subprocess.Popen
    cores: set[int]
    began: float
    said: int


def write_report(config: ConfigDict, folder: Path, done: Collection[str], failed: Collection[str] = ()) -> None:
    """Writes `study.md`, `study.json` and `plots/` from the results of the runs that are done."""
    origins = run_table.pretrainings(run_table.read_table(config, folder))
    study_report.write_study(Results(folder, done, origins, failed), read_report(config))


def read_report(config: ConfigDict) -> claims.Report:
    """What the study's config says to show.

    Raises:
      UserError: it says nothing, or something in it is missing, unknown or does not fit.
    """
    if not isinstance(spec := config.get("report"), ConfigDict):
        raise UserError("config.report is missing: give the study one, with title, preamble, tables, plots and claims")
    return claims.report(json.loads(spec.to_json()))


def _try_report(config: ConfigDict, folder: Path, done: Collection[str], failed: Collection[str] = ()) -> None:
    """As `write_report`; what a run of the study has that cannot be shown ends no other."""
    try:
        write_report(config, folder, done, failed)
    except UserError as error:
        _log.warning("the report could not be written: %s", error)


def _start(entry: Entry, cores: set[int]) -> subprocess.Popen:
    """Starts a run on some cores; what it prints goes to log.txt in its folder."""
    command = [sys.executable, "-m", "retrieval.studies.one_run", f"--workdir={entry.run.folder}"]
    # Runs of one study compile the same functions.
    cache = {"JAX_COMPILATION_CACHE_DIR": _compiled()}
    with open(entry.run.folder / _LOG, "a", encoding="utf-8") as log:
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


def _why(log: Path, said: int, status: int) -> str:
    """The last error of a run's log, behind the bytes that were there when it began."""
    text = log.read_bytes()[said:].decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    ending = f"killed by signal {-status}" if status < 0 else (errors or lines or ["no output"])[-1]
    return f"{ending} (all of it: {log})"


if __name__ == "__main__":
    command_line.run(main, computes=True)
