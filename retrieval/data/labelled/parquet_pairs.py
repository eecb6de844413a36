"""Labelled queries as Parquet: training sets of Hugging Face's hub, whose columns are the fields of `record_fields`.

A data set is a folder, as `snapshot_download` leaves it: data/train-00000-of-00002.parquet, data/test-....
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from retrieval.data.labelled import record_examples, record_fields
from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.labelled.labelled_format import register
from retrieval.data.labelled.record_fields import CLASS, TWO, Layout
from retrieval.data.labelled.record_format import RecordFormat
from retrieval.errors import UserError, listed
from retrieval.parsing import parquet_files


def read(path: Path, counts: Counts, names: Mapping[str, str] | None = None) -> Iterator[Example]:
    """The examples of a file whose texts stand in it, one after the other. Columns that are not read are not unpacked.

    Args:
      names: as `record_fields.named` gives them.
    """
    return record_examples.examples(_records(path, counts, names or {}), counts, names or {})


def _columns(path: Path, names: Mapping[str, str]) -> tuple[Layout, Sequence[str], Sequence[str]]:
    """What the columns are, and the names of all of them and of those that are read."""
    there = parquet_files.columns(path)
    ours = record_fields.renamed(dict(zip(there, there)), names, str(path))
    for name in names.values():
        record_fields.require(name, there, str(path))
    told = [name for name in there if name == record_fields.METADATA]
    has_objective = any(record_examples.has_objective(row) for _, row in islice(parquet_files.rows(path, told), 1))
    layout = record_fields.layout(list(ours), str(path), has_objective, names)
    read = list(there) if has_objective else [ours.get(field, field) for field in layout.fields if field in ours]
    if twice := [name for name in read if there.count(name) > 1]:
        raise UserError(f"{path}: two columns are called '{twice[0]}'; give one another name")
    return layout, there, read


def _records(path: Path, counts: Counts, names: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    layout, there, read = _columns(path, names)
    left_out = [name for name in there if name not in read and name not in record_fields.NO_MATTER]
    field = names.get(layout.labels, layout.labels) if layout.kind in (TWO, CLASS) else ""
    classes = parquet_files.class_names(path, field) if field else ()
    for at, record in parquet_files.rows(path, read):
        for name in left_out:
            counts.leave_out(record_examples.NOT_READ.format(name), at)
        if classes and record[field] is not None and record[field] != -1:
            if not 0 <= record[field] < len(classes):
                raise UserError(f"{at}: the {field} is {record[field]}, of {len(classes)} classes, {listed(classes)}")
            record[field] = classes[record[field]]
        yield at, record


@register
class ParquetPairs(RecordFormat):
    """The format 'parquet', which files are known by and folders are taken for."""

    name = "parquet"
    what = "Parquet with the fields of JSON lines as columns; or a folder of it, whose train split is read"
    setting = "--config.pairs.files=FILE.parquet,FOLDER,…"
    example = "columns anchor, positive, negative"

    def records(self, path: Path, counts: Counts, names: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """As `RecordFormat.records`. Columns that are not read are not unpacked."""
        return _records(path, counts, names)
