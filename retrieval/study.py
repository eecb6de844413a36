"""A study: a table of runs, each a plain `retrieval.main` run in a folder of its own, and their results side by side.

    python -m retrieval.study --config=configs/studies/pretraining_tasks.py:local --workdir=runs/tasks \\
        --config.corpus=DUMP.xml.bz2 --config.vocab=vocab.txt --config.questions=dev-v1.1.json

A run may name others of the table as its `base` and its `train.init_from`: it starts when they are finished, so what
runs share is done once. Called again, a study goes on: finished runs are skipped, failed ones are tried again.
"""

import atexit
import fnmatch
import functools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import flags
from absl import logging as absl_logging
from ml_collections import ConfigDict

from retrieval import LOCK, files
from retrieval.cli import command_line
from retrieval.config import experiment
from retrieval.config.fields import values_of
from retrieval.data.sets import splits
from retrieval.data.sets.set_format import SETS
from retrieval.errors import UserError, unknown_name
from retrieval.pipeline import preflight, records, runner
from retrieval.recipes import examples, initial_parameters
from retrieval.runtime.store import is_url
from retrieval.stage_outputs import Run
from retrieval.stages import prepare, sets
from retrieval.studies import claims, study_report
from retrieval.studies.study_results import Results

_log = logging.getLogger("retrieval.study")  # also where the module is the program

_ONLY = flags.DEFINE_list("only", ["*"], "Runs of the study to do, with those that they need: names or patterns, a,b*.")
_POLL_SECONDS = 0.2
_PATHS = (  # fields in which a run names another
    *("base", "train.init_from", "teacher.model"),
    *("pairs.files", "pairs.collection", "index.expansions", "index.term_weights"),
)
_LOG = "log.txt"
_QUESTIONS = ("sets", "mine", "pairs")  # stages that others are trained on the output of


@dataclass
class Entry:
    """A run of the table, and the names of the runs that must be finished before it."""

    name: str
    run: Run
    needs: tuple[str, ...]


def main(argv: Sequence[str]) -> int:
    """Does the runs that are not finished, writes the study's report; returns 1 where a run failed."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    command_line.refuse_arguments(argv)
    config, workdir = command_line.CONFIG.value, command_line.WORKDIR.value
    if config is None or "runs" not in config or "stages" in config:
        raise UserError("--config is missing, or not that of a study: configs/studies/pretraining_tasks.py:local")
    if not workdir:
        raise UserError("--workdir is missing: the folder to write to, such as --workdir=runs/tasks")
    if type(config.parallel) is not int or config.parallel < 1:
        raise UserError(f"config.parallel={config.parallel}: a whole number of at least 1 is needed, of runs at a time")
    if is_url(workdir):
        raise UserError(
            f"--workdir={workdir}: the runs of a study share a folder, which must be on a disk; a run by itself may be "
            "on a store: python -m retrieval.main --workdir=gs://BUCKET/RUN"
        )
    table = read_table(config, Path(workdir))
    check_table(table)
    chosen, done = select(table, _ONLY.value), finished(table)
    check_sources(config, [entry for name, entry in chosen.items() if name not in done])
    take_table(table, Path(workdir))
    execution = Execution(chosen, config.parallel)
    execution.run(lambda: _try_report(config, Path(workdir), done | execution.done))
    write_report(config, Path(workdir), done | execution.done)
    for name, reason in execution.failed.items():
        _log.error("%s: %s", name, reason)
    _log.info("report: %s", Path(workdir) / "study.md")
    return 1 if execution.failed else 0


def read_table(config: ConfigDict, folder: Path) -> dict[str, Entry]:
    """The runs of a study's config, in an order in which they can be done.

    They name each other by whole paths: the folder may be written otherwise the next time, and from elsewhere. A run
    is named in `base` and `train.init_from`, and what it wrote in the fields of `_PATHS`: 'RUN/generated/corpus.jsonl'.

    Raises:
      UserError: runs need each other in a circle.
    """
    entries, folder = {}, folder.absolute()
    for name in config.runs:
        run_config = ConfigDict(config.runs[name].to_dict())  # references to the study's fields become values
        paths = {field: path for field, path in values_of(run_config, _PATHS).items() if path}
        named = {field: path for field, path in paths.items() if path.partition("/")[0] in config.runs}
        needs = tuple(dict.fromkeys(path.partition("/")[0] for path in named.values()))
        run_config.update_from_flattened_dict({field: str(folder / path) for field, path in named.items()})
        entries[name] = Entry(name, Run(run_config, folder / name, LOCK), needs)
    ordered: dict[str, Entry] = {}
    for name in entries:
        _add(entries, name, (), ordered)
    return ordered


def check_table(table: dict[str, Entry]) -> None:
    """Checks the config of every run: the last one of a study starts after days.

    Raises:
      UserError: a field of a run has a value that it may not have, or that does not fit another field, or the run that
        its parameters are to start from.
    """
    trained = {str(entry.run.folder): entry.run.config for entry in table.values()}
    for entry in table.values():
        try:
            experiment.check(entry.run.config)
            preflight.check_settings(entry.run.config, entry.run.config.stages)
            if start := trained.get(entry.run.config.train.init_from):
                initial_parameters.check_sizes(entry.run.config, start)
                if step := entry.run.config.train.init_step:
                    kept = (*start.loop.keep_steps, start.train.steps)
                    initial_parameters.check_kept(step, kept, entry.run.config.train.init_from)
        except UserError as error:
            raise UserError(f"run '{entry.name}' of the study: {error}") from error


def check_sources(config: ConfigDict, entries: Sequence[Entry]) -> None:
    """Checks what the runs read from outside, in seconds: the first one that reads questions may come after days.

    Raises:
      UserError: a file is missing, or not what it should be; or SQuAD's questions are too few for a run's batch.
    """
    preview = functools.cache(lambda name, value: SETS[name].preview(value))
    runs = _by_folder(entries)
    pairs: dict[str, int] = {}  # to train on, by the folder of the run that divides the questions
    for entry in entries:
        config_of_run = entry.run.config
        try:
            if "prepare" in config_of_run.stages:
                prepare.check_settings(config_of_run)
                prepare.check_files(config_of_run)
            if "sets" in config_of_run.stages:
                sets.check(config_of_run, "prepare" in config_of_run.stages or bool(entry.needs))
                for form, field, _ in sets.formats(config_of_run):
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


def _holder(run: Run | None, stage: str, runs: Mapping[str, Run]) -> Run | None:
    """The run of the table that a stage is read from; `Run.holder` says so where the folders are made."""
    while run and stage not in run.config.stages:
        run = runs.get(run.config.base)
    return run


def pretrainings(table: Mapping[str, Entry]) -> dict[str, str]:
    """The pre-training that every run goes back to: its name, or where it lies outside of the study.

    A run that is trained from scratch, or not at all, goes back to itself.
    """
    runs, names = _by_folder(table.values()), {str(entry.run.folder): name for name, entry in table.items()}
    origins: dict[str, str] = {}
    for name, entry in table.items():  # after those that it needs
        trained = _holder(entry.run, "train", runs)
        init_from = trained.config.train.init_from if trained else _outside(entry.run, runs)
        start = init_from or str((trained or entry.run).folder)
        origins[name] = origins.get(names.get(start, ""), names.get(start, start))
    return origins


def _by_folder(entries: Iterable[Entry]) -> dict[str, Run]:
    return {str(entry.run.folder): entry.run for entry in entries}


def _outside(run: Run | None, runs: Mapping[str, Run]) -> str:
    """The base outside of the study that a run stands on, or ''."""
    while run and run.config.base in runs:
        run = runs[run.config.base]
    return run.config.base if run else ""


def _check_labels(entry: Entry, runs: Mapping[str, Run], pairs: Mapping[str, int]) -> None:
    """A batch is not larger than what is left of a set to train on."""
    run = entry.run
    divides, labels = (_holder(run, stage, runs) for stage in ("sets", "pairs"))
    if examples.unlabelled(run.config) or not (divides and labels) or labels.config.pairs.files:
        return
    left, batch_size = pairs.get(str(divides.folder)), run.config.train.batch_size
    if left is not None and left < batch_size:
        raise UserError(
            f"run '{entry.name}' of the study: config.split.ratio={divides.config.split.ratio} leaves {left} labelled "
            f"pairs to train on, fewer than config.train.batch_size={batch_size}: give more questions, such as SQuAD's "
            "train and dev files, or take a smaller batch"
        )


def take_table(table: dict[str, Entry], folder: Path) -> None:
    """Makes the folders of all runs, which no other study can take until this process ends.

    Raises:
      UserError: the folder has runs of another table, or another study has it; nothing is changed then.
    """
    _check_folder(table, folder)
    folder.mkdir(parents=True, exist_ok=True)
    files.lock(folder)
    done = finished(table)
    for name, entry in table.items():
        if name not in done:
            runner.open_run(entry.run)


def _check_folder(table: dict[str, Entry], folder: Path) -> None:
    strangers = [path.parent.name for path in folder.glob("*/config.json") if path.parent.name not in table]
    problems = [f"{name}: not a run of this study" for name in sorted(strangers)]
    trained_on = {name for entry in table.values() if entry.run.own_record("train").exists() for name in entry.needs}
    trained_on = set().union(*(select(table, [name]) for name in trained_on))
    for entry in table.values():
        try:
            runner.check_run(entry.run, _QUESTIONS if entry.name in trained_on else ())
        except UserError as error:
            problems.append(f"{entry.name}: {' '.join(str(error).split())}")
    if problems:
        raise UserError(
            f"{folder} holds runs of another table:\n  "
            + "\n  ".join([*problems[:2], *([f"and {len(problems) - 2} more"] if problems[2:] else [])])
            + "\nuse another --workdir, or delete the folders of these runs"
        )


def finished(table: Mapping[str, Entry]) -> set[str]:
    """The runs of which every stage is done with the settings of the table, and so are the runs that they need."""
    done: set[str] = set()
    for name, entry in table.items():
        if done.issuperset(entry.needs) and _is_finished(entry.run):
            done.add(name)
    return done


def _is_finished(run: Run) -> bool:
    path = run.folder / "config.json"
    if not path.exists() or files.read_json(path) != json.loads(run.config.to_json()):
        return False
    return all(records.is_current(run, stage) and records.is_written(run, stage) for stage in run.config.stages)


def select(table: dict[str, Entry], patterns: Sequence[str]) -> dict[str, Entry]:
    """The runs that a pattern names, and those that they need.

    Raises:
      UserError: a pattern names no run.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        names = fnmatch.filter(table, pattern)
        if not names:
            raise unknown_name("run", pattern, table)
        chosen.update(names)
    for name in reversed(table):
        if name in chosen:
            chosen.update(table[name].needs)
    return {name: entry for name, entry in table.items() if name in chosen}


class Execution:
    """Does the runs of a table, some at a time; a failed one is reported and the rest carried on.

    Attributes:
      done: the names of the finished runs.
      failed: the runs that failed, or that need one that did: name -> why.
    """

    def __init__(self, table: Mapping[str, Entry], parallel: int):
        """Args: parallel: how many runs go on at a time, each on its share of the cores."""
        self.done = finished(table)
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


def write_report(config: ConfigDict, folder: Path, done: Collection[str]) -> None:
    """Writes `study.md`, `study.json` and `plots/` from the results of the runs that are done."""
    spec = json.loads(config.report.to_json())
    study_report.write_study(
        Results(folder, done, pretrainings(read_table(config, folder))),
        spec["title"],
        [claims.table(table) for table in spec["tables"]],
        [claims.plot(plot) for plot in spec["plots"]],
        claims=[claims.claim(claim) for claim in spec["claims"]],
        preamble=spec["preamble"],
    )


def _try_report(config: ConfigDict, folder: Path, done: Collection[str]) -> None:
    """As `write_report`; what a run of the study has that cannot be shown ends no other."""
    try:
        write_report(config, folder, done)
    except UserError as error:
        _log.warning("the report could not be written: %s", error)


def _add(entries: dict[str, Entry], name: str, path: tuple[str, ...], ordered: dict[str, Entry]) -> None:
    """Appends a run to `ordered`, after those that it needs; `path` are the runs that it is needed for."""
    if name in path:
        raise UserError(f"runs that need each other: {' -> '.join([*path, name])}")
    for need in entries[name].needs:
        if need not in ordered:
            _add(entries, need, (*path, name), ordered)
    ordered.setdefault(name, entries[name])


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
    command_line.run(main)
