"""All systems of a run in one table: how good each is, and what it costs.

Stages tell what their systems cost under the names here. A system that stands on others, such as a fusion, costs what
these cost too.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.evaluation import per_query, significance
from retrieval.evaluation.metrics import is_share
from retrieval.evaluation.run_report import Table

BYTES, QUERY, PASSAGE = "bytes a passage", "query operations", "passage operations"
PARTS = "parts"  # the systems that one is fused from
AFTER = "after"  # the system whose results one ranks, in milliseconds of its own
TABLE = (BYTES, QUERY, PASSAGE, AFTER)  # what only this table shows
FREE = {QUERY: 0, PASSAGE: 0}  # of a system without an encoder

_MILLISECONDS = "milliseconds"
_USUAL = ("nDCG@10", "RR@10", "RR")  # the first of these that was measured is shown
_MILLION = 1e6
_NOTES = (
    "Intervals are of the mean over the queries, 95 % by Student's t. Bytes are those of the files that are searched. "
    "Milliseconds are of a search without encoding the query; of a fusion or a reranked list also those of its parts. "
    "Operations encode a text of mean length: those of matrix products in the traced program, two for a "
    "multiplication and an addition."
)


def of_set(name: str) -> str:
    """Under which name the stage `encode` tells the operations of a set's texts."""
    return f"{name}, operations"


def bytes_of(paths: Iterable[Path], passages: int) -> float:
    """The bytes of files, for a passage."""
    return round(sum(path.stat().st_size for path in paths if path.is_file()) / max(1, passages), 1)


def table(notes: Mapping[str, Mapping[str, Any]], results: Sequence[Mapping], folders: Sequence[Path]) -> Table:
    """Quality and cost of every system.

    Args:
      notes: what stages tell of a system, by 'SET, SYSTEM'.
      results: rows of results.json.
      folders: those that have `per_query`.
    """
    rows = []
    for (name, split), of_set in itertools.groupby(results, lambda row: (row["dataset"], row["split"])):
        values = {(row["system"], row["metric"]): row["value"] for row in of_set}
        metrics = dict.fromkeys(metric for _, metric in values)
        metric = next((metric for metric in (*_USUAL, *metrics) if metric in metrics and is_share(metric)), None)
        read = per_query.read_all(folders, name, split)
        for system in dict.fromkeys(system for system, _ in values):
            of = {key: _cost(notes, name, system, key) for key in (BYTES, _MILLISECONDS, QUERY, PASSAGE)}
            if metric is None or set(of.values()) == {None}:
                continue
            by_query = per_query.values_of(read, system, metric)
            quality = _with_interval(values.get((system, metric)), list(by_query.values()))
            operations = [None if count is None else count / _MILLION for count in (of[QUERY], of[PASSAGE])]
            rows.append([f"{name}, {split}", system, f"{metric} {quality}", of[BYTES], of[_MILLISECONDS], *operations])
    header = ["set", "system", "quality", "bytes a passage", "ms a query", "Mflop a query", "Mflop a passage"]
    return Table("Quality and cost", header, rows, _NOTES if rows else "", left=3)


def _cost(notes: Mapping[str, Mapping[str, Any]], name: str, system: str, key: str) -> float | None:
    """What a system costs, with those that it stands on; None where that is not known of one of them."""
    note = notes.get(f"{name}, {system}", {})
    parts = note.get(PARTS, ())
    if parts and key == _MILLISECONDS:  # which have the parts' already
        return note.get(key)
    first = note.get(AFTER)
    below = [_cost(notes, name, part, key) for part in (*parts, *([first] if first else []))]
    own = 0 if parts else note.get(key)
    return None if own is None or None in below else own + sum(filter(None, below))


def _with_interval(value: float | None, values: Sequence[float]) -> str:
    if value is None:
        return "–"
    margin = f" ± {100 * significance.margin(values):.2f}" if len(values) > 1 else ""
    return f"{100 * value:.2f}{margin}"
