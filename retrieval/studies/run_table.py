"""The runs of a study: read from its config, checked before any of them, and found done or not in their folders."""

import contextlib
import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_collections import ConfigDict

from retrieval import LOCK, files
from retrieval.config import experiment
from retrieval.config.fields import values_of
from retrieval.errors import UserError, unknown_name
from retrieval.pipeline import preflight, records, runner
from retrieval.recipes import initial_parameters
from retrieval.stage_outputs import Run

_PATHS = (  # fields in which a run names another
    *("base", "train.init_from", "teacher.model", "rerank.model"),
    *("pairs.files", "pairs.collection", "index.expansions", "index.term_weights"),
)
_QUESTIONS = ("sets", "mine", "pairs")  # stages that others are trained on the output of


@dataclass
class Entry:
    """A run of the table, and the names of the runs that must be finished before it."""

    name: str
    run: Run
    needs: tuple[str, ...]


def read_table(config: ConfigDict, folder: Path) -> dict[str, Entry]:
    """The runs of a study's config, in an order in which they can be done.

    They name each other by whole paths: the folder may be written otherwise the next time, and from elsewhere. A run
    is named in `base` and `train.init_from`, and what it wrote in the fields of `_PATHS`: 'RUN/generated/corpus.jsonl'.

    Raises:
      UserError: a field of a run is missing, unknown or has a value that it may not have, or runs need each other in a
        circle.
    """
    entries, folder = {}, folder.absolute()
    for name in config.runs:
        with _of_run(name):
            experiment.check(config.runs[name])
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
      UserError: a field of a run has a value that does not fit another field, or the run that its parameters are to
        start from.
    """
    trained = {str(entry.run.folder): entry.run.config for entry in table.values()}
    for entry in table.values():
        with _of_run(entry.name):
            preflight.check_settings(entry.run.config, entry.run.config.stages)
            if start := trained.get(entry.run.config.train.init_from):
                initial_parameters.check_sizes(entry.run.config, start)
                if step := entry.run.config.train.init_step:
                    steps = (*start.loop.keep_steps, start.train.steps)
                    initial_parameters.check_kept(step, steps, entry.run.config.train.init_from)


def holder(run: Run | None, stage: str, runs: Mapping[str, Run]) -> Run | None:
    """The run of the table that a stage is read from; `Run.holder` says so where the folders are made."""
    while run and stage not in run.config.stages:
        run = runs.get(run.config.base)
    return run


def pretrainings(table: Mapping[str, Entry]) -> dict[str, str]:
    """The pre-training that every run goes back to: its name, or where it lies outside of the study.

    A run that is trained from scratch, or not at all, goes back to itself.
    """
    runs, names = by_folder(table.values()), {str(entry.run.folder): name for name, entry in table.items()}
    origins: dict[str, str] = {}
    for name, entry in table.items():  # after those that it needs
        trained = holder(entry.run, "train", runs)
        init_from = trained.config.train.init_from if trained else _outside(entry.run, runs)
        start = init_from or str((trained or entry.run).folder)
        origins[name] = origins.get(names.get(start, ""), names.get(start, start))
    return origins


def by_folder(entries: Iterable[Entry]) -> dict[str, Run]:
    """The runs by the folders that they name each other by."""
    return {str(entry.run.folder): entry.run for entry in entries}


def _outside(run: Run | None, runs: Mapping[str, Run]) -> str:
    """The base outside of the study that a run stands on, or ''."""
    while run and run.config.base in runs:
        run = runs[run.config.base]
    return run.config.base if run else ""


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
    return all(_is_current(run, stage) and records.is_written(run, stage) for stage in run.config.stages)


def _is_current(run: Run, stage: str) -> bool:
    try:
        return records.is_current(run, stage)
    except (UserError, OSError):  # a file from outside has gone: what is done does without it
        return records.stays(run, stage)


def select(table: dict[str, Entry], patterns: Sequence[str]) -> dict[str, Entry]:
    """The runs that a pattern names, and those that they need.

    Raises:
      UserError: a pattern names no run, or there is none.
    """
    if not patterns:
        raise UserError("--only is empty: name runs or patterns of them, --only='a,b*', or leave the flag out")
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


@contextlib.contextmanager
def _of_run(name: str) -> Iterator[None]:
    """Errors say which run they are about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"run '{name}' of the study: {error}") from error


def _add(entries: dict[str, Entry], name: str, path: tuple[str, ...], ordered: dict[str, Entry]) -> None:
    """Appends a run to `ordered`, after those that it needs; `path` are the runs that it is needed for."""
    if name in path:
        raise UserError(f"runs that need each other: {' -> '.join([*path, name])}")
    for need in entries[name].needs:
        if need not in ordered:
            _add(entries, need, (*path, name), ordered)
    ordered.setdefault(name, entries[name])
