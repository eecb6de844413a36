"""Ranked lists of other systems: run files in TREC's or in MS MARCO's form, read for a set."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retrieval.data.sets.beir import Judged
from retrieval.errors import UserError, unknown_name
from retrieval.evaluation import runs
from retrieval.parsing import text_files
from retrieval.parsing.scalars import in_run_file

_log = logging.getLogger(__name__)

_FIELD = "config.runs.files"
REFUSE, ALLOW = "refuse", "allow"


class RunFile(NamedTuple):
    """A run file, and the name of its system."""

    system: str
    path: Path


class Lists(NamedTuple):
    """The ranked lists of a run file for every query of a set.

    Attributes:
      scores, rows: [Q, K], best first; -inf and -1 where there is no result.
      left_out: queries of the file that the set has not.
      without: queries of the set that have no result.
    """

    system: str
    scores: np.ndarray
    rows: np.ndarray
    left_out: int
    without: int


def tag(system: str) -> str:
    """The name of a system in a TREC run, which has no blanks; also that of the file that is written."""
    return system.replace(" ", "_")


def same_tag(first: str, second: str) -> str:
    """What is wrong with two systems of one tag, in words."""
    if first == second:
        return f"two systems are named '{first}'"
    return f"the systems '{first}' and '{second}' would have one run file, {tag(first)}.trec"


def run_files(values: Sequence[str]) -> list[RunFile]:
    """What `config.runs.files` names: 'SYSTEM=FILE', or 'FILE', whose system is the file's name without its ending.

    Raises:
      UserError: a file is missing, a name is empty, or two systems have one.
    """
    files: list[RunFile] = []
    for value in values:
        name, equals, place = value.partition("=")
        path = Path(place if equals else value)
        if not path.is_file():
            raise UserError(f"{_FIELD}: {path}: no such file; write SYSTEM=FILE, such as bm25=runs/bm25.trec")
        system = name if equals else path.name.removesuffix(".gz").rpartition(".")[0] or path.name
        if not system.strip() or "/" in system:
            raise UserError(f"{_FIELD}={value}: '{system}' cannot name a system; write SYSTEM=FILE")
        for other in files:
            if tag(other.system) == tag(system):
                raise UserError(f"{_FIELD}: {same_tag(other.system, system)}; write SYSTEM=FILE with two names")
        files.append(RunFile(system, path))
    return files


def set_of(name: str, names: Sequence[str]) -> str:
    """The set that run files are of: the one that `config.runs.set` names, or the only one.

    Raises:
      UserError: there is no such set, or there are several to choose from.
    """
    if name:
        if name not in names:
            raise unknown_name("set in config.runs.set", name, names)
        return name
    if len(names) != 1:
        raise UserError(f"config.runs.files: of which set are they? Set config.runs.set to one of {', '.join(names)}")
    return names[0]


def check_beginnings(values: Sequence[str]) -> None:
    """Checks the first lines of the files that `config.runs.files` names."""
    for file in run_files(values):
        runs.check_beginning(file.path, text_files.lines)


def read(files: Sequence[RunFile], value: Judged, unknown: str) -> tuple[Judged, list[Lists]]:
    """Reads run files for a set. With ALLOW the set gets the candidates that they name, behind its own.

    Raises:
      UserError: a file is none of a run, or names an id that the set has not and `unknown` is REFUSE; with the line.
    """
    more_queries: list[str] = []
    if unknown == ALLOW:
        queries, candidates = runs.ids_in_runs([file.path for file in files], text_files.lines)
        of_set, asked = set(map(in_run_file, value.candidates)), set(map(in_run_file, value.queries))
        more_queries = [id for id in queries if id not in asked]
        more = [id for id in candidates if id not in of_set]
        if more:
            _log.warning("set %s: run files name %d candidates that it has not", value.name, len(more))
        known = [*value.articles, *[""] * len(more)] if value.articles else []
        value = dataclasses.replace(value, candidates=[*value.candidates, *more], articles=known)
    query_ids, count = [*value.queries, *more_queries], len(value.queries)
    lists = []
    for file in files:
        try:
            scores, rows = runs.read_run(file.path, text_files.lines, query_ids, value.candidates)
        except runs.UnknownIdError as error:
            raise UserError(f"{error} With config.runs.unknown=allow such ids are counted") from error
        left_out, without = int((rows[count:, 0] >= 0).sum()), int((rows[:count, 0] < 0).sum())
        for number, what in ((left_out, "are of no query of the set"), (without, "queries have no result")):
            if number:
                _log.warning("%s: %d %s", file.path, number, what)
        if without == count:
            raise UserError(f"{file.path}: no result for any query of set '{value.name}'; is it of another set?")
        lists.append(Lists(file.system, scores[:count], rows[:count], left_out, without))
    return value, lists
