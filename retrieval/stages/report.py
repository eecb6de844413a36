"""The stage `report`: tables and plots of what a run found."""

import functools
import logging
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from retrieval import files
from retrieval.config import fields
from retrieval.data.corpora import source_paths
from retrieval.evaluation import display, result_files, run_report
from retrieval.evaluation.run_report import Table
from retrieval.pipeline.records import details, is_done, record_of, verify_written
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.search.index_kind import INDEXES
from retrieval.stage_outputs import Run
from retrieval.stages import report_questions, report_sets
from retrieval.stages.collection import Collection, open_collection, set_names
from retrieval.stages.evaluate import LEFT_OUT
from retrieval.stages.text_sizes import TextSizes

_log = logging.getLogger(__name__)

Details = Mapping[str, Any]
"""What a stage told the report."""

_SHOWN = 3  # parts of a corpus in the title
# What is told of run files.
_COUNTS = ("queries left out", "queries without results")


def write_report(run: Run) -> None:
    """Writes `report.md`, its plots and `report.html`.

    They come from `results.json`, `per_query`, the metrics of training and the records.
    """
    evaluated, trainer = details(run, "evaluate"), run.holder("train").config
    is_trained = "train" in trainer.stages
    trained = {task for task, rate in trainer.data.rates.items() if rate} if is_trained else set()
    records = {name: record_of(run, name) for name in run.config.stages if is_done(run, name)}
    of_stages = {
        functools.partial(_corpus, trained): "prepare",
        functools.partial(_counts, trained): "prepare",
        _sets: "sets",
        _indexes: "index",
        _searches: "evaluate",
        _plan: "plan",
    }
    tables = [
        table(details_of_stage) for table, stage in of_stages.items() if (details_of_stage := details(run, stage))
    ]
    tables = [
        *_reranked(details(run, "rerank") or {}),
        _answered(details(run, "answer") or {}),
        *tables,
        *report_questions.questions(run.sets, run.holder("evaluate").folder),
        *_texts(
            [open_collection(run, name) for name in set_names(run.sets)],
            TextSizes.of(trainer.data, run.load_vocabulary()) if run.vocabulary else None,
            _read_lengths(trainer, run.holder("encode").config.encode.windows) if is_trained else (),
        ),
        _stages(records),
        _config(run.config),
    ]
    tables = [table for table in tables if table.rows or table.notes]
    corpus = _names(run.holder("prepare").config.corpus)
    encoder = trainer.model.encoder if is_trained else ""
    is_searched = "index" in run.config.stages or not run.config.runs.files
    systems = _systems(encoder, run.holder("index").config.index.words, is_searched)
    title = f"{run.folder.name}: {systems}{f' on {corpus}' if corpus else ''}"
    folders = [run.holder("evaluate").folder]
    for stage, place in (("rerank", result_files.RERANKED), ("answer", result_files.ANSWERED)):
        if is_done(run, stage):
            folders.append(run.holder(stage).folder / place)
    results = [row for folder in folders for row in files.read_json(folder / result_files.NAME)]
    compared = [] if run.config.fuse.pairs else _fused(evaluated)  # of every two systems they would be too many
    verify_written(run.folder, ["metrics"])
    run_report.write_report(run.folder, title, results, tables, folders, compared)
    _log.info("report: %s/report.html, and the same as report.md", run.place)


def _names(corpus: str) -> str:
    """What a corpus is called for others, who have no use for the folders of this machine."""
    names = [os.path.basename(os.path.abspath(part)) for part in source_paths.split(corpus)]
    return ", ".join(names if len(names) <= _SHOWN else [*names[:_SHOWN], f"{len(names) - _SHOWN} more"])


def _systems(encoder: str, words: Sequence[str], is_searched: bool) -> str:
    """What was trained; without that what was searched: indexes of words, or run files alone."""
    indexes = [INDEXES[name].title for name in words if name in INDEXES]
    return encoder or ", ".join(indexes if is_searched else ["run files"])


def _fused(evaluated: Details) -> list[tuple[str, str]]:
    """Each fused system with each of its parts."""
    pairs = [(name.partition(", ")[2], part) for name, note in evaluated.items() for part in note.get("parts", ())]
    return list(dict.fromkeys(pairs))


def _reranked(reranked: Details) -> Iterator[Table]:
    """Metrics by depth, before and after reranking, and consistency factors."""
    if table := reranked.get("depths"):
        names = list(table[0]["after"])
        header = ["set", "split", "system", "depth n", "R@n"]
        header += [cell for name in names for cell in (f"{name} before", f"{name} after")]
        rows = [
            [row["set"], row["split"], row["system"], row["depth"], f"{100 * row['recall']:.2f}"]
            + [f"{100 * row[when][name]:.2f}" for name in names for when in ("before", "after")]
            for row in table
        ]
        notes = "The first n results are reranked, and the rest is dropped."
        yield Table("Reranking by depth", header, rows, notes)
    if factors := reranked.get("consistency"):
        depths = list(factors[0]["factors"])
        rows = [
            [row["set"], row["system"], row["trained on"], row.get("trained depth", "")]
            + [f"{row['factors'][depth]:.3f}" for depth in depths]
            for row in factors
        ]
        header = ["set", "system", "trained on", "its first", *(f"n = {depth}" for depth in depths)]
        notes = "The share of the first n results that the other system has too (Zhan et al. 2020, equation 5)."
        yield Table("Consistency factor", header, rows, notes)


def _answered(answered: Details) -> Table:
    """What a reader's answers are from, and what it could not read."""
    counts = list(
        dict.fromkeys(name for of in answered.values() for name in of if name not in ("weight", "validation"))
    )
    header = ["set, system", "weight of the reader", "chosen on questions", *counts]
    rows = [
        [name, of["weight"], of["validation"], *(of.get(count, 0) for count in counts)] for name, of in answered.items()
    ]
    return Table("Answers", header, rows)


def _corpus(trained: Container[str], statistics: Details) -> Table:
    """The pairs of the tasks that were trained on."""
    rows = [
        [task.upper(), t["pairs"], t["tokens"], t["query_tokens"], t["document_tokens"]]
        for task, t in statistics["tasks"].items()
        if task in trained and t["pairs"]
    ]
    problems = (text for text in statistics["problems"] if _is_told(text, trained, statistics))
    notes = [f"**problem**: {display.inline(problem)}" for problem in problems]
    header = ["task", "pairs", "tokens", "tokens per query", "tokens per document"]
    return Table("Corpus: pairs to train on", header, rows, "; ".join(notes))


def _counts(trained: Container[str], statistics: Details) -> Table:
    counts = [item for item in statistics["counts"].items() if _is_told(item[0], trained, statistics)]
    return Table("Corpus: what was read, and what was left out", ["", "count"], counts)


def _is_told(text: str, trained: Container[str], statistics: Details) -> bool:
    """Whether a text is about the corpus, or about a task that was trained on."""
    return not any(re.search(rf"\b{task.upper()}\b", text) for task in statistics["tasks"] if task not in trained)


def _sets(sizes: Details) -> Table:
    columns = list(dict.fromkeys(name for size in sizes.values() for name in size))
    rows = [[name, *(size.get(column) for column in columns)] for name, size in sizes.items()]
    return Table("Evaluation sets", ["set", *columns], rows)


def _indexes(built: Details) -> Table:
    return Table("Indexes", ["collection, index", "what and how"], list(map(list, built.items())), left=2)


def _searches(evaluated: Details) -> Table:
    names = ("milliseconds", "recall_against_exact", "weights", "validation", *_COUNTS)
    cells = {name: [_listed(note.get(what)) for what in names] for name, note in evaluated.items()}
    rows = [[name, *row] for name, row in cells.items() if any(cell is not None for cell in row)]
    header = ["set, system", "ms per query", "recall against exact", "weights", "validation questions", *_COUNTS]
    is_usual = any(name.endswith(", hybrid") and note.get("validation") == 0 for name, note in evaluated.items())
    notes = (
        "The weights of a hybrid that 0 validation questions chose are the usual ones, once chosen on test questions "
        "of SQuAD."
    )
    whys = {name: note[LEFT_OUT] for name, note in evaluated.items() if LEFT_OUT in note}
    left_out = [f"**{display.inline(name)}** is left out: {display.inline(why)}." for name, why in whys.items()]
    return Table("Searches", header, rows, " ".join([*left_out, *([notes] if is_usual else [])]))


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


def _read_lengths(trained: ConfigDict, windows: int) -> tuple[int, ...]:
    """The tokens that a model reads of a query, and of a candidate where that has one window."""
    lengths = trained.data.query_length, trained.data.document_length
    return lengths if windows == 1 else lengths[:1]


def _texts(sets: Iterable[Collection], sizes: TextSizes | None, reads: Sequence[int]) -> Iterator[Table]:
    """The lengths of each set's texts, in tokens where there are some.

    Args:
      reads: the tokens of queries and of documents that a model reads, as far as there is such a number.
    """
    for collection in sets:
        yield report_sets.lengths(collection.files[0].parent, sizes, reads)


def _config(config: ConfigDict) -> Table:
    """The fields that are not as the package has them."""
    defaults = fields.defaults()
    values = fields.flatten(config.to_dict())
    rows = [[name, str(value), str(defaults.get(name, ""))] for name, value in values if defaults.get(name) != value]
    return Table("Config: fields that differ from their defaults", ["field", "value", "default"], rows, left=3)


STAGES.register(
    "report",
    Stage(
        write_report,
        reads=(
            Read("evaluate", required=True),
            Read("rerank", optional=True),
            Read("answer", optional=True),
            Read("prepare", loose=True),
            Read("sets", loose=True),
        ),
        leaves=("report.md", "report.html", "plots"),
    ),
)
