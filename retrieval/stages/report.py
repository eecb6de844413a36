"""The stage `report`: tables and plots of what a run found."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from retrieval.common import libraries
from retrieval.config import fields, tree
from retrieval.evaluation import display, result_files, run_report
from retrieval.evaluation.run_report import Table
from retrieval.runs.pipeline.records import details, is_done, record_of, verify_written
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.ranking import costs
from retrieval.runs.ranking.ranked_lists import COUNTS

_log = logging.getLogger(__name__)

Details = Mapping[str, Any]
"""What a stage told the report."""


def write_report(run: Run) -> None:
    """Writes `report.md`, its plots and `report.html`.

    They come from `results.json`, `per_query`, the metrics of training and the records.
    """
    evaluated, searched = details(run, "evaluate"), details(run, "maxsim") or {}
    records = {name: record_of(run, name) for name in run.config.stages if is_done(run, name)}
    of_stages = ((run.owner(stage).folder / place, stage) for stage, place in result_files.OF_STAGES.items())
    folders = [run.owner("evaluate").folder, *(folder for folder, stage in of_stages if is_done(run, stage))]
    results = result_files.rows(folders)
    tables = [
        costs.table((evaluated or {}) | searched, results, folders),
        *(table(notes) for stage, table in _TABLES if (notes := details(run, stage))),
        _stages(records),
        _config(run.config),
    ]
    tables = [table for table in tables if table.rows or table.notes]
    compared = [] if run.config.fuse.pairs else _fused(evaluated)  # of every two systems they would be too many
    verify_written(run.folder, ["metrics"])
    run_report.write_report(run.folder, run.folder.name, results, tables, folders, compared)
    _log.info("report: %s/report.html, and the same as report.md", run.display_path)


def _fused(evaluated: Details) -> list[tuple[str, str]]:
    """Each fused system with each of its parts."""
    pairs = [(name.partition(", ")[2], part) for name, note in evaluated.items() for part in note.get("parts", ())]
    return list(dict.fromkeys(pairs))


def _by_name(title: str, first: str, notes: Mapping[str, Details], without: Collection[str] = ()) -> Table:
    """A row for each name; `first` is the header of the names, and all that is told but `without` has a column."""
    names = dict.fromkeys(name for of in notes.values() for name in of)
    columns = [name for name in names if name not in without]
    return Table(
        title, [first, *columns], [[name, *(of.get(column) for column in columns)] for name, of in notes.items()]
    )


def _by_depth(reranked: Details) -> Table:
    """Metrics before and after reranking."""
    measured = reranked["depths"]
    names = list(measured[0]["after"]) if measured else []
    header = ["set", "split", "system", "depth n", "R@n"]
    header += [cell for name in names for cell in (f"{name} before", f"{name} after")]
    rows = [
        [row["set"], row["split"], row["system"], row["depth"], f"{100 * row['recall']:.2f}"]
        + [f"{100 * row[when][name]:.2f}" for name in names for when in ("before", "after")]
        for row in measured
    ]
    notes = "The first n results are reranked, and the rest is dropped."
    return Table("Reranking by depth", header, rows, notes if rows else "")


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


def _answered(answered: Details) -> Table:
    """What a reader's answers are from, and what it could not read."""
    names = dict.fromkeys(name for of in answered.values() for name in of)
    counts = [name for name in names if name not in ("weight", "validation")]
    header = ["set, system", "weight of the reader", "chosen on questions", *counts]
    rows = [
        [name, of["weight"], of["validation"], *(of.get(count, 0) for count in counts)] for name, of in answered.items()
    ]
    return Table("Answers", header, rows)


def _token_vectors(counts: Details) -> Table:
    return _by_name("Vectors of tokens", "set", counts, (costs.QUERY, costs.PASSAGE))


def _maxsim(searches: Details) -> Table:
    """How long the comparison of tokens takes, and what a faster search finds of the exact results."""
    return _by_name("Searches by MaxSim", "set, system", searches, costs.TABLE)


def _corpus(statistics: Details) -> Table:
    """The pairs of the tasks that there are."""
    rows = [
        [task.upper(), t["pairs"], t["tokens"], t["query_tokens"], t["document_tokens"]]
        for task, t in statistics["tasks"].items()
        if t["pairs"]
    ]
    notes = [f"**problem**: {display.inline(problem)}" for problem in statistics["problems"]]
    header = ["task", "pairs", "tokens", "tokens per query", "tokens per document"]
    return Table("Corpus: pairs to train on", header, rows, "; ".join(notes))


def _counts(statistics: Details) -> Table:
    return Table("Corpus: what was read, and what was left out", ["", "count"], list(statistics["counts"].items()))


def _sets(sizes: Details) -> Table:
    return _by_name("Evaluation sets", "set", sizes)


def _indexes(built: Details) -> Table:
    return Table("Indexes", ["collection, index", "what and how"], list(map(list, built.items())), left=2)


def _searches(evaluated: Details) -> Table:
    names = ("milliseconds", "recall_against_exact", "weights", "validation", *COUNTS)
    cells = {name: [_listed(note.get(what)) for what in names] for name, note in evaluated.items()}
    rows = [[name, *row] for name, row in cells.items() if any(cell is not None for cell in row)]
    header = ["set, system", "ms per query", "recall against exact", "weights", "validation questions", *COUNTS]
    is_usual = any(name.endswith(", hybrid") and note.get("validation") == 0 for name, note in evaluated.items())
    notes = (
        "The weights of a hybrid that 0 validation questions chose are the usual ones, once chosen on test questions "
        "of SQuAD."
    )
    return Table("Searches", header, rows, notes if is_usual else "")


def _listed(value: Any) -> Any:
    """Weights as one text."""
    return ", ".join(f"{weight:.3g}" for weight in value) if isinstance(value, list) else value


def _plan(planned: Details) -> Table:
    return Table("Plan of training", ["", "plan"], list(map(list, planned.items())), left=2)


def _stages(records: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [[name, record["seconds"], record["peak_memory_mb"]] for name, record in records.items()]
    notes = (
        "Seconds are those since the stage was begun or gone on with. Peak memory is that of the process (or of its "
        "largest child) up to the end of the stage."
    )
    return Table("Stages", ["stage", "seconds", "peak memory (MB)"], rows, notes)


def _config(config: ConfigDict) -> Table:
    """The fields that are not as the package has them."""
    defaults = tree.defaults()
    values = fields.flatten(config.to_dict())
    rows = [[name, str(value), str(defaults.get(name, ""))] for name, value in values if defaults.get(name) != value]
    return Table("Config: fields that differ from their defaults", ["field", "value", "default"], rows, left=3)


# What the report shows of what stages told, in this order.
_TABLES: Sequence[tuple[str, Callable[[Details], Table]]] = (
    ("rerank", _by_depth),
    ("rerank", _consistency),
    ("answer", _answered),
    ("tokens", _token_vectors),
    ("maxsim", _maxsim),
    ("prepare", _corpus),
    ("prepare", _counts),
    ("sets", _sets),
    ("index", _indexes),
    ("evaluate", _searches),
    ("plan", _plan),
)

STAGES.register(
    "report",
    Stage(
        write_report,
        check=(libraries.check_training,),
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
