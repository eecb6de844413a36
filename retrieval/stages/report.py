"""The stage `report`: tables and plots of what a run found."""

import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.config import fields
from retrieval.evaluation import display, result_files, run_report, verdict
from retrieval.evaluation.run_report import Table
from retrieval.runs.pipeline.records import details, is_done, record_of, verify_written
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.ranking import costs, failures, fused
from retrieval.runs.ranking.collection import NOTES
from retrieval.runs.ranking.ranked_lists import COUNTS

_log = logging.getLogger(__name__)

Details = Mapping[str, Any]
"""What a stage told the report."""


def write_report(run: Run) -> None:
    """Writes `report.md`, its plots and `report.html`.

    They come from `results.json`, `per_query`, the metrics of training and the records.
    """
    evaluated = details(run, "evaluate") or {}
    of_stages = ((run.owner(stage).folder / place, stage) for stage, place in result_files.OF_STAGES.items())
    folders = [run.owner("evaluate").folder, *(folder for folder, stage in of_stages if is_done(run, stage))]
    results = result_files.rows(folders)
    measured, sets = evaluated | (details(run, "maxsim") or {}), details(run, "sets") or {}
    tables = [
        *_failed(evaluated),
        *(table(notes) for stage, table in _TABLES if (notes := details(run, stage))),
        _stages({name: record_of(run, name) for name in run.config.stages if is_done(run, name)}),
        _config(run.config),
        Table("How this was measured", [], [], f"{verdict.METHOD} {costs.METHOD}"),
    ]
    fusions = {} if run.config.fuse.pairs else evaluated  # of every two systems they would be too many
    parts = [(name.partition(", ")[2], part) for name, of in fusions.items() for part in of.get(costs.PARTS, ())]
    verify_written(run.folder, ["metrics"])
    shown = [table for table in tables if table.rows or table.notes]
    notes = {name: [note for of in (sets, evaluated) for note in of.get(name, {}).get(NOTES, ())] for name in sets}
    columns = {key: of | _weights(measured[key]) for key, of in costs.of_systems(measured).items()}
    compared = list(dict.fromkeys(parts))
    run_report.write_report(run.folder, _title(run), results, shown, folders, compared, columns, notes)
    _log.info("report: %s/report.html, and the same as report.md", run.display_path)


def _by_name(title: str, first: str, notes: Mapping[str, Details], without: Collection[str] = ()) -> Table:
    """A row for each name; `first` is the header of the names, and all that is told but `without` has a column."""
    columns = [column for column in dict.fromkeys(itertools.chain(*notes.values())) if column not in without]
    return Table(title, [first, *columns], [[name, *map(of.get, columns)] for name, of in notes.items()])


def _by_depth(reranked: Details) -> Table:
    """Metrics before and after reranking."""
    measured = reranked["depths"]
    columns = [(name, when) for name in (measured[0]["after"] if measured else ()) for when in ("before", "after")]
    rows = [
        [row["set"], row["split"], row["system"], row["depth"], f"{100 * row['recall']:.2f}"]
        + [f"{100 * row[when][name]:.2f}" for name, when in columns]
        for row in measured
    ]
    header = ["set", "split", "system", "depth n", "R@n", *map(" ".join, columns)]
    notes = "The first n results are reranked, and the rest is dropped." if rows else ""
    return Table("Reranking by depth", header, rows, notes)


def _consistency(reranked: Details) -> Table:
    measured = reranked["consistency"]
    depths = list(measured[0]["factors"]) if measured else []
    rows = [
        [row["set"], row["system"], row["trained on"], row.get("trained depth", "")]
        + [f"{row['factors'][depth]:.3f}" for depth in depths]
        for row in measured
    ]
    header = ["set", "system", "trained on", "its first", *(f"n = {depth}" for depth in depths)]
    notes = "The share of the first n results that the other system has too (Zhan et al. 2020, equation 5)."
    return Table("Consistency factor", header, rows, notes if rows else "")


def _corpus(statistics: Details) -> Table:
    """The pairs of the tasks that there are."""
    columns = {"pairs": "pairs", "tokens": "tokens", "query_tokens": "tokens per query"}
    columns |= {"document_tokens": "tokens per document"}
    tasks = statistics["tasks"].items()
    rows = [[task.upper(), *map(counts.get, columns)] for task, counts in tasks if counts["pairs"]]
    notes = [f"**problem**: {display.inline(problem)}" for problem in statistics["problems"]]
    title = "Corpus: pairs to train on" if rows else "Corpus"
    return Table(title, ["task", *columns.values()], rows, "; ".join(notes))


def _searches(evaluated: Details) -> Table:
    columns = {"recall_against_exact": "recall against exact"} | dict(zip(COUNTS, COUNTS))
    cells = {name: [note.get(column) for column in columns] for name, note in evaluated.items()}
    rows = [[name, *row] for name, row in cells.items() if any(cell is not None for cell in row)]
    return Table("Searches", ["set, system", *columns.values()], rows)


def _weights(note: Details) -> dict[str, str]:
    """The weights of the parts of a system, and who chose them."""
    weights = ", ".join(f"{weight:.3g}" for weight in note.get("weights", ()))
    chosen_by = note.get(fused.CHOSEN_BY, f"{note.get('validation')} validation questions")
    return {"weights": f"{weights} ({chosen_by})"} if weights else {}


def _failed(evaluated: Details) -> Iterator[Table]:
    """The questions of each set that its best system fails most."""
    for name, of in evaluated.items():
        if failed := of.get(failures.FAILED):
            title, rows = f"{name}: questions that {failed['system']} fails most", failed["questions"]
            yield Table(title, list(rows[0]), [list(row.values()) for row in rows], left=3)


def _title(run: Run) -> str:
    """The name of the run, its model and its documents."""
    model, title = run.owner("train"), run.folder.name
    if model.lists("train"):
        title += f": {Path(model.config.train.init_from).name.partition('@')[0] or model.config.recipe}"
        title += f" after {steps:,} steps" if (steps := (details(run, "train") or {}).get("steps")) else ""
    if prepared := details(run, "prepare"):
        names = ", ".join(Path(part).name for part in run.owner("prepare").config.corpus.split(",")[:3])
        title += f" on {prepared['counts']['passages']:,} passages of {names}"
    return title


def _stages(records: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [[name, record["seconds"], record["peak_memory_mb"]] for name, record in records.items()]
    notes = "Seconds are since the stage began or went on. Peak memory is the process's or largest child's till then."
    return Table("Stages", ["stage", "seconds", "peak memory (MB)"], rows, notes)


def _config(config: ConfigDict) -> Table:
    """The fields that are not as the package has them."""
    defaults, values = fields.defaults(), fields.flatten(config.to_dict())
    rows = [[name, str(value), str(defaults.get(name, ""))] for name, value in values if defaults.get(name) != value]
    return Table("Config: fields that differ from their defaults", ["field", "value", "default"], rows, left=3)


# What the report shows of what stages told, in this order.
_TABLES: Sequence[tuple[str, Callable[[Details], Table]]] = (
    ("rerank", _by_depth),
    ("rerank", _consistency),
    ("answer", lambda notes: _by_name("Answers", "set, system", notes)),
    ("tokens", lambda notes: _by_name("Vectors of tokens", "set", notes, (costs.QUERY, costs.PASSAGE))),
    ("maxsim", lambda notes: _by_name("Searches by MaxSim", "set, system", notes, costs.TABLE)),
    ("prepare", _corpus),
    ("prepare", lambda notes: Table("Corpus: what was read, and left out", ["", "count"], [*notes["counts"].items()])),
    ("sets", lambda sizes: _by_name("Evaluation sets", "set", sizes, (NOTES,))),
    ("index", lambda notes: Table("Indexes", ["collection, index", "what and how"], [*notes.items()], left=2)),
    ("evaluate", _searches),
    ("plan", lambda notes: Table("Plan of training", ["", "plan"], [*notes.items()], left=2)),
)

STAGES.register(
    "report",
    Stage(
        write_report,
        reads=(
            Read("evaluate", required=True),
            Read("rerank", optional=True),
            Read("answer", optional=True),
            Read("tokens", optional=True),
            Read("maxsim", optional=True),
            Read("prepare", any_version=True),
            Read("sets", any_version=True),
        ),
        side_outputs=("report.md", "report.html", "plots"),
    ),
)
