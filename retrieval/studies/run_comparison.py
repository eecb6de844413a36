"""Finished runs side by side: their results, what is sure of the differences, their settings and their cost."""

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
from retrieval.evaluation import display, per_query, result_files, run_report, verdict
from retrieval.evaluation.metrics import primary
from retrieval.evaluation.verdict import Comparison
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


def compare(places: Sequence[str], systems: Sequence[str] = ()) -> list[str]:
    """Runs side by side, as Markdown; each is tested against the first.

    Args:
      places: work directories, on a disk or on a store.
      systems: the system of each run that is tested; without them all that have the same name in both.

    Raises:
      UserError: there are fewer than two, one is no run or has no results or no such system, or they share no
        evaluation set.
    """
    runs = read_runs(places)
    if systems and len(systems) != len(runs):
        raise UserError(f"--systems has {len(systems)} names for {len(runs)} runs: name the system of each, A,B")
    for run, system in zip(runs, systems):
        if system not in (measured := {row["system"] for row in run.rows}):
            raise unknown_name(f"system in {run.name}", system, measured)
    names = [run.name for run in runs]
    shown = [f"# {display.inline(' beside '.join(names))}"]
    for dataset, split in _shared(runs):
        metric, tested = differences(runs, systems, dataset, split)
        shown += [f"## {display.inline(f'{dataset}, {split}')}", _results_table(runs, dataset, split)]
        shown += [verdict.comparison_table(tested, metric), verdict.METHOD] if tested else [_NOT_TESTED]
        sizes = {run.name: run.candidates[dataset] for run in runs if dataset in run.candidates}
        if len(set(sizes.values())) > 1:
            counts = ", ".join(f"{size:,} in {name}" for name, size in sizes.items())
            shown.append(f"**The sets differ**: candidates: {display.inline(counts)}. Such values do not compare.")
    settings = {name: [str(run.fields.get(name, "")) for run in runs] for run in runs for name in run.fields}
    rows = [[name, *values] for name, values in sorted(settings.items()) if len(set(values)) > 1]
    table = display.markdown(["field", *names], rows, left=1 + len(names)) if rows else "None."
    return [*shown, "## Settings that differ", table, "## Cost", display.markdown(["", *names], list(_cost(runs)))]


def read_runs(places: Sequence[str]) -> list[FinishedRun]:
    """Runs that share an evaluation set, each named by its folder, or by its place where folders have one name."""
    places = [place.rstrip("/") if is_url(place) else str(Path(place).resolve()) for place in places]
    if len(places) < 2 or len(set(places)) < len(places):
        raise UserError(f"two or more different runs are compared, not {' '.join(places)}: retrieval compare A B")
    last = [place.rpartition("/")[2] for place in places]
    runs = [_read(*pair) for pair in zip(places, last if len(set(last)) == len(last) else places)]
    if not _shared(runs):
        sets = "; ".join(f"{run.name}: {', '.join(sorted({row['dataset'] for row in run.rows}))}" for run in runs)
        raise UserError(f"the runs share no evaluation set ({sets}); evaluate them on the same one")
    return runs


def _read(place: str, name: str) -> FinishedRun:
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
    run = Run(preflight.read_config(folder), folder, Path(), remote=copy)
    own = {stage: record for stage in run.config.stages if (record := records.read_own_record(run, stage))}
    sets: Mapping[str, Any] = own.get("sets") or {}
    with contextlib.suppress(UserError):  # a base that is gone, without which the rest can still be compared
        sets = sets or records.read_record(run, "sets") or {}
    sizes = {name: of["candidates"] for name, of in (sets.get("details") or {}).items() if "candidates" in of}
    done = {stage: record for stage, record in own.items() if record["done"]}
    return FinishedRun(name, folder, rows, dict(fields.flatten(run.config.to_dict())), done, sizes)


def _shared(runs: Sequence[FinishedRun]) -> list[tuple[str, str]]:
    """The sets and rules that two runs or more have, in the order of the first run that has them."""
    of_runs = (dict.fromkeys((row["dataset"], row["split"]) for row in run.rows) for run in runs)
    return [key for key, count in collections.Counter(itertools.chain.from_iterable(of_runs)).items() if count > 1]


def _results_table(runs: Sequence[FinishedRun], dataset: str, split: str) -> str:
    """A row for each run and system."""
    metrics: dict[tuple, dict[str, float]] = {}
    for run in runs:
        for row in run.rows:
            if (row["dataset"], row["split"]) == (dataset, split):
                key = (run.name, row["system"], row["step"], row["queries"])
                metrics.setdefault(key, {})[row["metric"]] = row["value"]
    rows = [(key, values, ()) for key, values in metrics.items()]
    return run_report.metric_table(["Run", "System", "Step", "Queries"], rows, left=2)


def differences(
    runs: Sequence[FinishedRun], systems: Sequence[str], dataset: str, split: str
) -> tuple[str, list[Comparison]]:
    """Each later run against the first: its system, or all whose name both have; not where all values are the same.

    Returns:
      The primary metric of those that two have, and what was compared by it.
    """
    values, pairs = [], []
    for number, run in enumerate(runs):
        for each in per_query.read_all(result_files.folders(run.folder), dataset, split):
            values.append(each._replace(systems=[f"{system} of {run.name}" for system in each.systems]))
            names = [(systems[number], systems[0])] if systems else [(system, system) for system in each.systems]
            pairs += [(f"{own} of {run.name}", f"{first} of {runs[0].name}") for own, first in names if number]
    counts = collections.Counter(metric for each in values for metric in each.metrics)
    metric = primary(name for name, count in counts.items() if count > 1) or ""

    def differ(pair: tuple[str, str]) -> bool:
        return bool(per_query.differences(*(per_query.values_of(values, system, metric) for system in pair)).any())

    return metric, verdict.tested(values, filter(differ, pairs), metric)


def _cost(runs: Sequence[FinishedRun]) -> Iterator[list[Any]]:
    """Rows: what was trained, and the seconds and the memory of each stage that the runs did themselves."""
    trained = [run.records.get("train", {}).get("details") or {} for run in runs]
    for name in ("parameters", "steps", "devices", "platform"):
        if any(name in details for details in trained):
            yield [name, *(details.get(name) for details in trained)]
    for stage in dict.fromkeys(stage for run in runs for stage in run.records):
        yield [f"{stage}, seconds", *(run.records.get(stage, {}).get("seconds") for run in runs)]
    peaks = [max((record["peak_memory_mb"] for record in run.records.values()), default=None) for run in runs]
    yield ["peak memory (MB)", *peaks]
