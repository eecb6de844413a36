"""Exact search over the embeddings of a set cut to several sizes and stored in several precisions: what each costs."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.errors import UserError
from retrieval.evaluation.run_report import Table
from retrieval.search import encoding, quantised_kind, row_views, windows
from retrieval.search.encoding import StoredRows
from retrieval.search.rescoring import Rescored
from retrieval.search.row_views import CutRows
from retrieval.search.vector_codes import FLOAT32, Form
from retrieval.search.windows import Index
from retrieval.stages import costs
from retrieval.stages.collection import Collection

_METRICS = ("nDCG@10", "R@100")  # of the table, where they were measured


class Forms(NamedTuple):
    """What is compared: every size in every precision.

    Attributes:
      sizes: first dimensions that are kept; 0: all.
      rescore: results for each that is asked for which embeddings of the same size score again; 0: none.
    """

    sizes: Sequence[int]
    precisions: Sequence[str]
    rescore: int


class Searched(NamedTuple):
    """A form of the embeddings, ready to be searched.

    Attributes:
      system: its name in tables.
      queries_QE: for this size.
      notes: what the report says about it.
    """

    system: str
    index: Index
    queries_QE: np.ndarray
    notes: Mapping[str, Any]


def forms_of(config: ConfigDict) -> Forms:
    """What a config asks for: sizes alone are of float32, and precisions alone of the whole embeddings."""
    sizes, precisions = config.evaluate.sizes, config.evaluate.precisions
    is_asked = sizes or precisions
    return Forms(sizes or ((0,) if is_asked else ()), precisions or (FLOAT32,), config.evaluate.rescore)


def searched(collection: Collection, forms: Forms) -> Iterator[Searched]:
    """Every form, one after the other: one is in memory at a time.

    Raises:
      UserError: embeddings have fewer dimensions than a size, or these do not fill whole bytes.
    """
    if not forms.sizes:
        return
    rows = StoredRows(collection.embeddings(), "candidates")
    queries_QE, _ = encoding.load(collection.embeddings(), "queries")
    owners_W = windows.owners(encoding.load_ids(collection.embeddings(), "candidates"))
    full, normalised = rows.shape[1], bool(rows.form and rows.form.normalised)
    for size, precision in itertools.product(forms.sizes, forms.precisions):
        if size > full:
            raise UserError(
                f"config.evaluate.sizes: embeddings of '{collection.name}' have {full} dimensions: take less"
            )
        kept = size or full
        cut = CutRows(rows, kept, normalised)
        index = quantised_kind.build(cut, precision)
        asked_QE = row_views.cut(queries_QE, kept, normalised)
        size_of = Form(precision, kept).vector_bytes
        notes = {"size": kept, "precision": precision, "bytes": size_of, "rescored": 0}
        notes[costs.BYTES] = round(size_of * len(owners_W) / len(set(owners_W.tolist())), 1)
        of = Searched(f"dense ({kept}, {precision})", windows.over_candidates(index, owners_W), asked_QE, notes)
        yield of
        if forms.rescore and precision != FLOAT32:
            again = windows.over_candidates(Rescored(index, cut.take, forms.rescore), owners_W)
            more = {**notes, "rescored": forms.rescore}
            yield of._replace(system=f"dense ({kept}, {precision}, rescored)", index=again, notes=more)


def table(evaluated: Mapping[str, Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> Table:
    """Quality, bytes and speed of every form.

    Args:
      evaluated: notes on the systems of each set, by 'SET, SYSTEM'.
      results: rows of results.json.
    """
    rows, metrics = [], [name for name in _METRICS if any(row["metric"] == name for row in results)]
    metrics = metrics or list(dict.fromkeys(row["metric"] for row in results))[:1]
    for (name, split), of_set in itertools.groupby(results, lambda row: (row["dataset"], row["split"])):
        values = {(row["system"], row["metric"]): row["value"] for row in of_set}
        for system in dict.fromkeys(system for system, _ in values):
            note = evaluated.get(f"{name}, {system}", {})
            if "precision" not in note:
                continue
            cells = [_cells(values.get((system, metric)), values.get(("dense", metric))) for metric in metrics]
            speed = 1000 / note["milliseconds"] if note["milliseconds"] else None
            of_form = [note["size"], note["precision"], note["rescored"] or None, note["bytes"]]
            rows.append([f"{name}, {split}", *of_form, *itertools.chain.from_iterable(cells), speed])
    of_metrics = itertools.chain.from_iterable((metric, "% of all") for metric in metrics)
    header = ["set", "size", "precision", "rescored", "bytes a vector", *of_metrics, "queries/s"]
    notes = (
        "Exact search over the first dimensions, of length 1 again where the model's are. Rescored: so many results "
        "for each of the list were scored again with float32 embeddings of this size, which the bytes do not count."
    )
    return Table("Embeddings by size and precision", header, rows, notes if rows else "")


def _cells(value: float | None, full: float | None) -> tuple[str | None, str | None]:
    """A value in percent, and as a share of the whole embeddings' in float32."""
    if value is None:
        return None, None
    return f"{100 * value:.2f}", f"{100 * value / full:.1f}" if full else None
