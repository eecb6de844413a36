"""Labelled queries as Parquet: training sets of Hugging Face's hub, whose columns are the fields of `jsonl_pairs`.

A data set is a folder, as `snapshot_download` leaves it: data/train-00000-of-00002.parquet, data/test-....
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.data.labelled import jsonl_pairs
from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.labelled.labelled_format import LabelledFormat, Settings, register
from retrieval.errors import UserError
from retrieval.parsing import parquet_files


def read(path: Path, counts: Counts, names: Mapping[str, str] | None = None) -> Iterator[Example]:
    """The examples of a file, one after the other. Columns that are not read are not unpacked.

    Args:
      names: as `jsonl_pairs.named` gives them.

    Raises:
      UserError: as `parquet_files.rows`, or as `jsonl_pairs.examples`; with the row.
    """
    there = parquet_files.columns(path)
    fields = jsonl_pairs.fields_read(there, names or {}, str(path))
    if twice := [name for name in fields if there.count(name) > 1]:
        raise UserError(f"{path}: two columns are called '{twice[0]}'; give one another name")
    left_out = [name for name in there if name not in fields]

    def records() -> Iterator[tuple[str, dict[str, Any]]]:
        for at, record in parquet_files.rows(path, fields):
            for name in left_out:
                counts.leave_out(jsonl_pairs.NOT_READ.format(name), at)
            yield at, record

    yield from jsonl_pairs.examples(records(), counts, names or {})


@register
class ParquetPairs(LabelledFormat):
    """The format 'parquet', which files are known by and folders are taken for."""

    name = "parquet"
    what = "Parquet with the fields of JSON lines as columns; or a folder of it, whose train split is read"
    setting = "--config.pairs.files=FILE.parquet,FOLDER,…"
    example = "columns anchor, positive, negative"

    def read(self, path: Path, counts: Counts, settings: Settings, folder: Path, pool: int) -> Iterator[Example]:
        return read(path, counts, jsonl_pairs.named(settings.fields))
