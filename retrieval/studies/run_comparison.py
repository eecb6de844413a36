"""Finished runs side by side: their results, what is sure of the differences, their settings and their cost."""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common.errors import UserError, unknown_name
from retrieval.common.runtime import artefacts
from retrieval.common.runtime.store import is_url
from retrieval.config import fields
from retrieval.evaluation import display, per_query, result_files, run_report, significance
from retrieval.evaluation.metrics import is_share
from retrieval.runs.pipeline import preflight, records
from retrieval.runs.pipeline.run import Run

# What is read of a run on a store.
_READ = (result_files.NAME, per_query.FOLDER, *result_files.OF_STAGES.values(), "stages")
_NOT_TESTED = "**Not tested**: no question and system in common with the first run, or all values are the same."


class FinishedRun(NamedTuple):
    """A run that has results.

    Attributes:
      name: as it is shown.
      rows: of results.json, and of those of its further stages.
      fields: its config, by dotted names.
      records: of its own finished stages.
      candidates: how many each evaluation set has, its own or its base's, where that is known.
    """

    name: str
    folder: Path
    rows: Sequence[Mapping[str, Any]]
    fields: Mapping[str, Any]
    records: Mapping[str, Mapping[str, Any]]
    candidates: Mapping[str, int]


class Difference(NamedTuple):
    """What a system of one run is above one of another, as a fraction, and its corrected p-value."""

    dataset: str
    split: str
    metric: str
    run: str
    system: str
    over: str
    over_system: str
    questions: int
    difference: float
    p_value: float


class Comparison(NamedTuple):
    """Runs, and their differences."""

    runs: Sequence[FinishedRun]
    differences: Sequence[Difference]


def compare(places: Sequence[str], systems: Sequence[str] = ()) -> Comparison:
    """Reads runs, and tests each of them against the first.

    Args:
      places: work directories, on a disk or on a store.
      systems: the system of each run that is tested; without them all that have the same name in both.

    Raises:
      UserError: there are fewer than two, one is no run or has no results or no such system, or they share no
        evaluation set.
    """
    if len(places) < 2:
        raise UserError("two runs or more are compared: retrieval compare runs/a runs/b")
    if len({place.rstrip("/") if is_url(place) else str(Path(place).resolve()) for place in places}) < len(places):
        raise UserError(f"one run is there twice: {' '.join(places)}; leave it out")
    last = [place.rstrip("/").rpartition("/")[2] for place in places]
    names = last if len(set(last)) == len(last) else [place.rstrip("/") for place in places]
    runs = [read_run(place, name) for place, name in zip(places, names)]
    if not _shared(runs):
        sets = "; ".join(f"{run.name}: {', '.join(sorted({row['dataset'] for row in run.rows}))}" for run in runs)
        raise UserError(f"the runs share no evaluation set ({sets}); evaluate them on the same one")
    if systems and len(systems) != len(runs):
        raise UserError(f"--systems has {len(systems)} names for {len(runs)} runs: name the system of each, A,B")
    for run, system in zip(runs, systems):
        if system not in (measured := {row["system"] for row in run.rows}):
            raise unknown_name(f"system in {run.name}", system, measured)
    return Comparison(runs, _tests(runs, systems))


def tables(comparison: Comparison) -> list[str]:
    """The comparison as Markdown."""
    runs = comparison.runs
    shown = [f"# {display.inline(' beside '.join(run.name for run in runs))}"]
    for dataset, split in _shared(runs):
        shown += [f"## {display.inline(f'{dataset}, {split}')}", _results_table(runs, dataset, split)]
        of_set = [each for each in comparison.differences if (each.dataset, each.split) == (dataset, split)]
        shown += [_differences_table(of_set), run_report.DIFFERENCES] if of_set else [_NOT_TESTED]
        sizes = {run.name: run.candidates[dataset] for run in runs if dataset in run.candidates}
        if len(set(sizes.values())) > 1:
            counts = ", ".join(f"{size:,} in {name}" for name, size in sizes.items())
            shown.append(f"**The sets differ**: candidates: {display.inline(counts)}. Such values do not compare.")
    names, fields_of = [run.name for run in runs], [run.fields for run in runs]
    settings = {name: [of.get(name, "") for of in fields_of] for name in sorted(set().union(*fields_of))}
    rows = [[name, *map(str, of)] for name, of in settings.items() if any(value != of[0] for value in of)]
    table = display.markdown(["field", *names], rows, left=1 + len(names)) if rows else "None."
    return [*shown, "## Settings that differ", table, "## Cost", display.markdown(["", *names], list(_cost(runs)))]


def read_run(place: str, name: str) -> FinishedRun:
    """A run by its work directory, under a name that is shown.

    Raises:
      UserError: it is no run, or has no results.
    """
    copy = artefacts.copy_of(place) if is_url(place) else None
    folder = copy.folder if copy else Path(place)
    if not (folder / preflight.CONFIG).exists():
        raise UserError(f"{place}: no work directory of a run, for it has no {preflight.CONFIG}; name a --workdir")
    if copy:
        copy.get(_READ)
    records.verify_written(folder, _READ)
    rows = result_files.rows(result_files.folders(folder))
    if not rows:
        raise UserError(f"{place}: the run has no results; --stage=evaluate makes them")
    config = preflight.read_config(folder)
    run = Run(config, folder, Path(), remote=copy)
    own = {stage: records.read_own_record(run, stage) for stage in config.stages}
    of_stages = {stage: record for stage, record in own.items() if record and record["done"]}
    sets = of_stages.get("sets")
    with contextlib.suppress(UserError):  # a base that is gone, without which the rest can still be compared
        sets = sets or records.read_record(run, "sets")
    counted = ((sets or {}).get("details") or {}).items()
    sizes = {dataset: counts["candidates"] for dataset, counts in counted if "candidates" in counts}
    return FinishedRun(name, folder, rows, dict(fields.flatten(config.to_dict())), of_stages, sizes)


def _shared(runs: Sequence[FinishedRun]) -> list[tuple[str, str]]:
    """The sets and rules that two runs or more have, in the order of the first run that has them."""
    of_runs = (dict.fromkeys((row["dataset"], row["split"]) for row in run.rows) for run in runs)
    return [key for key, count in collections.Counter(itertools.chain.from_iterable(of_runs)).items() if count > 1]


def _results_table(runs: Sequence[FinishedRun], dataset: str, split: str) -> str:
    """A row for each run and system. Runs with the same values, such as BM25's, share one."""
    metrics: dict[tuple, dict[str, float]] = {}
    for run in runs:
        for row in run.rows:
            if (row["dataset"], row["split"]) == (dataset, split):
                key = (run.name, row["system"], row["step"], row["queries"])
                metrics.setdefault(key, {})[row["metric"]] = row["value"]
    alike: dict[tuple, list[str]] = {}
    for (name, *of_system), values in metrics.items():
        alike.setdefault((*of_system, tuple(values.items())), []).append(name)
    rows = [((", ".join(names), *of_system), dict(values), ()) for (*of_system, values), names in alike.items()]
    return run_report.metric_table(["Run", "System", "Step", "Queries"], rows, left=2)


def _tests(runs: Sequence[FinishedRun], systems: Sequence[str]) -> list[Difference]:
    """Each later run against the first; p-values are corrected over those of a set and rule."""
    first, *others = runs
    named = [(system, systems[0]) for system in systems[1:]] or [None] * len(others)
    differences: list[Difference] = []
    for dataset, split in _shared(runs):
        tested = [each for other, names in zip(others, named) for each in _tested(other, first, dataset, split, names)]
        corrected = significance.holm([each.p_value for each in tested])
        differences += (each._replace(p_value=p_value) for each, p_value in zip(tested, corrected))
    return differences


def _tested(
    run: FinishedRun, over: FinishedRun, dataset: str, split: str, names: tuple[str, str] | None
) -> Iterator[Difference]:
    """The differences of two systems, or of all that have one name and other values. p-values are not yet corrected."""
    own, first = (per_query.read_all(result_files.folders(each.folder), dataset, split) for each in (run, over))
    for ours in own:
        for system, other in [names] if names else zip(ours.systems, ours.systems):
            theirs = next((values for values in first if other in values.systems), None)
            if system not in ours.systems or theirs is None:
                continue
            above = [per_query.differences(ours.of(system, name), theirs.of(other, name)) for name in ours.metrics]
            for metric, differences_Q in zip(ours.metrics, above):
                if any(each_Q.any() for each_Q in above) and is_share(metric) and len(differences_Q):
                    mean, p_value = float(differences_Q.mean()), significance.randomisation(differences_Q)
                    of = (dataset, split, metric, run.name, system, over.name, other)
                    yield Difference(*of, len(differences_Q), mean, p_value)


def _differences_table(differences: Sequence[Difference]) -> str:
    metrics = list(dict.fromkeys(each.metric for each in differences))
    rows: dict[tuple, dict[str, str]] = {}
    for each in differences:
        key = f"{each.system} of {each.run} over {each.over_system} of {each.over}", each.questions
        cell = f"{100 * each.difference:+.2f} ({display.p_value(each.p_value)})"
        rows.setdefault(key, {})[each.metric] = cell
    header = ["Difference", "Questions", *metrics]
    return display.markdown(header, [[*key, *map(cells.get, metrics)] for key, cells in rows.items()])


def _cost(runs: Sequence[FinishedRun]) -> Iterator[list[Any]]:
    """Rows: what was trained, and the seconds and the memory of each stage that the runs did themselves."""
    trained = [(run.records.get("train") or {}).get("details") or {} for run in runs]
    for name in ("parameters", "steps", "devices", "platform"):
        if any(name in details for details in trained):
            yield [name, *(details.get(name) for details in trained)]
    for stage in dict.fromkeys(stage for run in runs for stage in run.records):
        details = [run.records.get(stage, {}) for run in runs]
        yield [f"{stage}, seconds", *(of.get("seconds") for of in details)]
    peaks = [max((record["peak_memory_mb"] for record in run.records.values()), default=None) for run in runs]
    yield ["peak memory (MB)", *peaks]
