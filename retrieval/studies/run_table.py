"""The runs of a study: read from its config, checked before any of them, and found done or not in their folders."""

import contextlib
import fnmatch
import graphlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from retrieval import LOCK
from retrieval.common import files
from retrieval.common.errors import UserError, unknown_name
from retrieval.config import experiment
from retrieval.config.fields import values_of
from retrieval.runs.pipeline import preflight, protected, records, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES
from retrieval.runs.weights import trained_run

_PATHS = (  # fields in which a run names another
    *("base", "train.init_from", "teacher.model", "rerank.model"),
    *("pairs.files", "pairs.collection", "index.expansions", "index.term_weights"),
)


class Entry(NamedTuple):
    """A run of the table, and the names of the runs that must be finished before it."""

    name: str
    run: Run
    needs: tuple[str, ...]


def read_table(config: ConfigDict, folder: Path) -> dict[str, Entry]:
    """The runs of a study's config, each after those that it needs.

    A run is named in `base` and `train.init_from`, what it wrote in others of `_PATHS`: 'RUN/generated/corpus.jsonl'.
    These become whole paths: the folder may be written otherwise the next time, and from elsewhere.

    Raises:
      UserError: a field of a run is missing, unknown or has a value that it may not have, or runs need each other in a
        circle.
    """
    entries, folder = {}, folder.absolute()
    for name in config.runs:
        with _of_run(name):
            experiment.check(config.runs[name])
        run_config = ConfigDict(config.runs[name].to_dict())  # references to the study's fields become values
        paths = values_of(run_config, _PATHS)
        needs = {field: run for field, path in paths.items() if (run := path.partition("/")[0]) in config.runs}
        run_config.update_from_flattened_dict({field: str(folder / paths[field]) for field in needs})
        entries[name] = Entry(name, Run(run_config, folder / name, LOCK), tuple(dict.fromkeys(needs.values())))
    try:
        order = list(graphlib.TopologicalSorter({name: entry.needs for name, entry in entries.items()}).static_order())
    except graphlib.CycleError as error:
        raise UserError(f"runs that need each other: {' -> '.join(error.args[1])}") from error
    return {name: entries[name] for name in order}


def check_table(table: Mapping[str, Entry]) -> None:
    """Checks that the config of every run fits itself, and the run that it starts from: the last starts after days."""
    trained = {str(entry.run.folder): entry.run.config for entry in table.values()}
    for name, entry in table.items():
        config = entry.run.config
        with _of_run(name):
            preflight.check_settings(config, config.stages)
            if start := trained.get(config.train.init_from):
                trained_run.check_sizes(config, start)
                if step := config.train.init_step:
                    steps = (*start.loop.keep_steps, start.train.steps)
                    trained_run.check_kept(step, steps, config.train.init_from)


def check_sources(study: ConfigDict, entries: Iterable[Entry]) -> None:
    """Checks what runs read from outside, after `take_table`: the first that reads questions may come after days."""
    empty = ", ".join(f"config.{name}" for name, value in study.items() if value == "")
    for entry in entries:
        with _of_run(entry.name, f"; of the study: empty {empty}" if empty else ""):
            for stage in entry.run.config.stages:
                for check in STAGES[stage].check if stage in ("prepare", "sets") else ():
                    check(entry.run)


def pretrainings(table: Mapping[str, Entry]) -> dict[str, str]:
    """The pre-training that every run goes back to: its name, or where it lies outside of the study.

    A run that is trained from scratch, or not at all, goes back to itself.
    """
    runs = {str(entry.run.folder): name for name, entry in table.items()}
    origins: dict[str, str] = {}  # '' where nothing is trained
    for name, entry in table.items():  # after those that it needs
        config = entry.run.config
        is_trained = entry.run.lists("train")
        start = config.train.init_from if is_trained else config.base
        origins[name] = (origins[runs[start]] if start in runs else start) or (name if is_trained else "")
    return {name: origin or name for name, origin in origins.items()}


def take_table(table: Mapping[str, Entry], folder: Path) -> None:
    """Makes the folders of all runs, which no other study can take until this process ends.

    Raises:
      UserError: a folder has a run of other settings, or another study has it; nothing is changed then.
    """
    for name, entry in table.items():
        with _of_run(name):
            protected.check_run(entry.run)
    folder.mkdir(parents=True, exist_ok=True)
    files.lock(folder)
    for name in table.keys() - finished(table):
        runner.open_run(table[name].run)


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
        return records.is_fresh(run, stage)


def select(table: Mapping[str, Entry], patterns: Sequence[str]) -> dict[str, Entry]:
    """The runs that patterns name, and those that they need."""
    chosen: set[str] = set()
    for pattern in patterns or [""]:
        if not (names := fnmatch.filter(table, pattern)):
            raise unknown_name("run in --only", pattern, table)
        chosen.update(names)
    for name in reversed(list(table)):
        if name in chosen:
            chosen.update(table[name].needs)
    return {name: entry for name, entry in table.items() if name in chosen}


@contextlib.contextmanager
def _of_run(name: str, hint: str = "") -> Iterator[None]:
    """Errors say which run they are about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"run '{name}' of the study: {error}{hint}") from error
