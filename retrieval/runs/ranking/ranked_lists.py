"""Ranked lists of a set: a system's, whoever searched; run files of others, and files of what stages of a run found.

runs/SET/SYSTEM.trec      written by `evaluate`, read by the stages that go on from there
searched/STAGE/SET.npz    written by stages that search in a way of their own, read by `evaluate`
"""

import dataclasses
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError, unknown_name
from retrieval.common.parsing.scalars import in_run_file
from retrieval.data.sets.beir import Judged
from retrieval.evaluation import metrics, runs
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read
from retrieval.search import fusion

_log = logging.getLogger(__name__)

_FIELD = "config.runs.files"
REFUSE, ALLOW = "refuse", "allow"
# What is told of a run file, with the words of a warning.
LEFT_OUT, WITHOUT = "queries left out", "queries without results"
COUNTS = {LEFT_OUT: "are of no query of the set", WITHOUT: "queries have no result"}

Among = Callable[[int, np.ndarray], np.ndarray]


class Ranking(NamedTuple):
    """A system's ranked lists for every query of a set.

    Attributes:
      system: its name in tables.
      scores, rows: [Q, depth], best first; -inf and -1 where there are fewer results.
      seconds: that the search took; None of lists that were read from a file.
      step: of training, of a system that searches with trained embeddings.
      recall: of an approximate index, the share of the exact results that it finds.
      weights: of the parts of a weighted sum; of a hybrid that of the words and that of the dense list.
      validation: how many validation questions chose the weights.
      parts: the names of the systems that it was fused from.
      on_validation: gives the lists for the validation questions, where there are some.
      among: scores [K] of some rows [K] for the query of a number; None where a system has no more than its lists.
      notes: what else the report says about it.
    """

    system: str
    scores: np.ndarray
    rows: np.ndarray
    seconds: float | None = None
    step: int | None = None
    recall: float | None = None
    weights: tuple[float, ...] = ()
    validation: int = 0
    parts: tuple[str, ...] = ()
    on_validation: Callable[[], fusion.Run] | None = None
    among: Among | None = None
    notes: Mapping[str, Any] = {}

    @property
    def lists(self) -> fusion.Run:
        """Scores and rows, as a search gives them."""
        return self.scores, self.rows

    def first(self, queries_of: "QuerySet", depth: int) -> "Ranking":
        """The same of the first `depth` results that are not the query itself."""
        scores, rows = others(self.lists, queries_of, depth)
        return self._replace(scores=scores, rows=rows)


class QuerySet(Protocol):
    """Queries by their ids, and the row of the candidate that is the query itself, where there is one."""

    @property
    def queries(self) -> Mapping[str, str]: ...

    @property
    def own(self) -> Mapping[str, int]: ...


def others(lists: fusion.Run, queries_of: QuerySet, depth: int) -> fusion.Run:
    """The first `depth` results that are not the query itself."""
    scores_QK, rows_QK = metrics.drop_self_matches(*lists, queries_of.queries, queries_of.own)
    return scores_QK[:, :depth], rows_QK[:, :depth]


def tag(system: str) -> str:
    """The name of a system in a TREC run, which has no blanks; also that of the file that is written."""
    return system.replace(" ", "_")


def same_tag(systems: Sequence[str]) -> str:
    """What is wrong where two systems have one name, in tables or as run files; '' where none have."""
    for place, system in enumerate(systems):
        if other := next((one for one in systems[:place] if tag(one) == tag(system)), None):
            what = f"would have one run file, {tag(system)}.trec"
            same = other == system
            return f"two systems are named '{system}'" if same else f"the systems '{other}' and '{system}' {what}"
    return ""


class RunFile(NamedTuple):
    """A run file, and the name of its system."""

    system: str
    path: Path


def run_files(values: Sequence[str]) -> list[RunFile]:
    """What `config.runs.files` names: 'SYSTEM=FILE', or 'FILE', whose system is the file's name without its ending.

    Raises:
      UserError: a file is missing, a name is empty, or two systems have one.
    """
    named: list[RunFile] = []
    for value in values:
        name, equals, place = value.partition("=")
        path = Path(place if equals else value)
        if not path.is_file():
            raise UserError(f"{_FIELD}: {path}: no such file; write SYSTEM=FILE, such as bm25=runs/bm25.trec")
        system = name if equals else path.name.removesuffix(".gz").rpartition(".")[0] or path.name
        if not system.strip() or "/" in system:
            raise UserError(f"{_FIELD}={value}: '{system}' cannot name a system; write SYSTEM=FILE")
        named.append(RunFile(system, path))
    if problem := same_tag([file.system for file in named]):
        raise UserError(f"{_FIELD}: {problem}; write SYSTEM=FILE with two names")
    return named


def check_beginnings(values: Sequence[str]) -> None:
    """Checks the first lines of the files that `config.runs.files` names."""
    for file in run_files(values):
        runs.check_beginning(file.path)


def read(named: Sequence[RunFile], value: Judged, unknown: str = ALLOW) -> tuple[Judged, list[Ranking]]:
    """Reads run files for a set. With ALLOW the set gets the candidates that they name, behind its own.

    Raises:
      UserError: a file is none of a run, or names an id that the set has not and `unknown` is REFUSE; with the line.
    """
    more_queries: list[str] = []
    if unknown == ALLOW and named:
        queries, candidates = runs.ids_in_runs(file.path for file in named)
        of_set, of_queries = set(map(in_run_file, value.candidates)), set(map(in_run_file, value.queries))
        more_queries = [id for id in queries if id not in of_queries]
        more = [id for id in candidates if id not in of_set]
        if more:
            _log.warning("set %s: run files name %d candidates that it has not", value.name, len(more))
        known = [*value.articles, *[""] * len(more)] if value.articles else []
        value = dataclasses.replace(value, candidates=[*value.candidates, *more], articles=known)
    query_ids, count, lists = [*value.queries, *more_queries], len(value.queries), []
    for file in named:
        try:
            scores, rows = runs.read_run(file.path, query_ids, value.candidates)
        except runs.UnknownIdError as error:
            raise UserError(f"{error} With config.runs.unknown=allow such ids are counted") from error
        counts = {LEFT_OUT: int((rows[count:, 0] >= 0).sum()), WITHOUT: int((rows[:count, 0] < 0).sum())}
        notes = {what: number for what, number in counts.items() if number}
        for what, number in notes.items():
            _log.warning("%s: %d %s", file.path, number, COUNTS[what])
        if counts[WITHOUT] == count:
            raise UserError(f"{file.path}: no result for any query of set '{value.name}'; is it of another set?")
        lists.append(Ranking(file.system, scores[:count], rows[:count], notes=notes))
    return value, lists


def check_texts(texts: Sized, value: Judged, rows: Iterable[int]) -> None:
    """Checks that candidates have texts: a run of others may name some that the set has none of."""
    if (most := max(rows, default=-1)) >= len(texts):
        what = f"no text of the candidate '{value.candidates[most]}', which a run names"
        raise UserError(f"set '{value.name}': {what}: a model cannot score it; take a set with all texts")


def write_run(folder: Path, value: Judged, ranking: Ranking) -> None:
    """Writes the lists of a set as a run file, `SYSTEM.trec` in a folder."""
    name = tag(ranking.system)
    runs.write_run(folder / f"{name}.trec", list(value.queries), value.candidates, *ranking.lists, name)


def check_evaluated(run: Run, stage: str, depth: int, field: str) -> None:
    """Checks that `evaluate` writes runs, and long enough ones.

    Args:
      stage: that reads them.
      depth: how many results of a query it needs.
      field: of `config` that says so, with its value.
    """
    evaluated = run.owner("evaluate").config
    if "evaluate" not in evaluated.stages or not evaluated.evaluate.runs:
        way = "with config.evaluate.runs=True, or name a run that has it in config.base"
        raise UserError(f"stage '{stage}' reads the runs of 'evaluate': add that to config.stages, {way}")
    if (theirs := evaluated.evaluate.depth) < depth:
        what = f"runs have config.evaluate.depth={theirs} results"
        raise UserError(f"config.{field}, but {what}: raise that to {depth}, or take fewer")


def evaluated_runs(run: Run, sets: Sequence[str], systems: Mapping[str, str]) -> dict[str, dict[str, RunFile]]:
    """The run files that `evaluate` wrote: set -> system -> file. A set that has none of the systems is left out.

    Args:
      systems: as tables name them; each with the field of `config` that asks for it.

    Raises:
      UserError: a system has no run for any set.
    """
    folder = run.owner("evaluate").folder / "runs"
    paths = {name: {path.stem: path for path in sorted((folder / name).glob("*.trec"))} for name in sets}
    known = dict.fromkeys(stem for of_set in paths.values() for stem in of_set)
    for system, field in systems.items():
        if tag(system) not in known:
            raise unknown_name(f"system in config.{field}, which has no run in {folder},", tag(system), known)
    files_of: dict[str, dict[str, RunFile]] = {}
    for name, system in itertools.product(paths, systems):
        if path := paths[name].get(tag(system)):
            files_of.setdefault(name, {})[system] = RunFile(system, path)
    return files_of


def train_unless(model: str) -> tuple[str, ...]:
    """`train`, where the run's own model is meant, and not one that a field names."""
    return () if model else ("train",)


def reads_runs(model: str) -> tuple[str | Read, ...]:
    """What a stage reads that goes on from the runs of `evaluate`, with the run's own model where a field is ''."""
    return (Read("sets", must_match=True), "evaluate", *train_unless(model))


def searched_folder(stage: str) -> str:
    """Where a stage writes lists for `evaluate`, below the work directory; it names the folder in `Stage.writes`."""
    return f"searched/{stage}"


def searched_stages() -> list[Read]:
    """The stages that write such lists: a run reads those that it has."""
    return [Read(name, optional=True) for name, stage in STAGES.items() if searched_folder(name) in stage.writes]


def write_searched(run: Run, stage: str, name: str, ranking: Ranking) -> None:
    """Writes the lists of a set, whole or not at all."""
    folder = run.folder / searched_folder(stage)
    facts = {"system": ranking.system, "seconds": ranking.seconds, "step": ranking.step, "notes": dict(ranking.notes)}
    folder.mkdir(parents=True, exist_ok=True)
    with files.atomic(folder / f"{name}.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, scores=ranking.scores, rows=ranking.rows, facts=np.array(json.dumps(facts)))


def read_searched(run: Run, value: Judged) -> Iterator[Ranking]:
    """The lists of a set, of every stage that wrote some.

    Raises:
      UserError: they are of another number of queries than the set has, or damaged.
    """
    for stage in (read.stage for read in searched_stages()):
        owner = run.owner(stage)
        path = owner.folder / searched_folder(stage) / f"{value.name}.npz"
        if not (records.is_done(owner, stage) and path.exists()):
            continue
        arrays = files.read_arrays(path, f"--stage={stage} makes it again")
        if len(arrays["rows"]) != len(value.queries) or arrays["rows"].max(initial=-1) >= len(value.candidates):
            raise UserError(f"{path}: older than the set '{value.name}'; --stage={stage} makes it again")
        yield Ranking(scores=arrays["scores"], rows=arrays["rows"], **json.loads(str(arrays["facts"])))
