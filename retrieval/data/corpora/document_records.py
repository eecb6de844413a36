"""Files of records, of which each is a document: JSON lines, Parquet, CSV and TSV."""

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.common.errors import UserError
from retrieval.common.parsing import parquet_files, text_files
from retrieval.data.corpora.document_format import USUAL, Columns, RecordFormat, columns, register

_ROW = ("id", "text")  # the columns of a collection.tsv
_OF_TABS = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}


@register
class JsonDocuments(RecordFormat):
    """Lines of a file may have different fields."""

    name = "jsonl"
    what = "JSON lines, a document each: BEIR's fields, or those that config.documents names"
    suffixes = (".jsonl", ".ndjson")
    example = '{"_id": "d1", "title": "T", "text": "words"}'

    def records(self, path: Path, fields: Mapping[str, str]) -> Iterator[tuple[str, Columns, Mapping[str, Any]]]:
        """As `RecordFormat.records`."""
        for at, record in text_files.objects(path, self.example):
            if isinstance(metadata := record.get("metadata"), dict):  # BEIR's
                record = {f"metadata.{name}": value for name, value in metadata.items()} | record
            names = [name for name in record if record[name] or name != "url" or fields.get("url")]
            yield at, columns(names, fields, at), record


@register
class ParquetRows(RecordFormat):
    """Row groups are read one after the other."""

    name = "parquet"
    what = "Parquet, a document each, with named columns"
    suffixes = (".parquet",)
    example = "columns id, title, text"

    def records(self, path: Path, fields: Mapping[str, str]) -> Iterator[tuple[str, Columns, Mapping[str, Any]]]:
        """As `RecordFormat.records`."""
        chosen = columns(parquet_files.columns(path), fields, str(path))
        yield from ((at, chosen, row) for at, row in parquet_files.rows(path, list(filter(None, chosen))))


@register
class SeparatedValues(RecordFormat):
    """Commas or semicolons, and quotes, in CSV; in TSV tabs alone, and quotes are letters like others."""

    name = "csv"
    what = "CSV or TSV, a document each, with named columns; or MS MARCO's collection.tsv"
    suffixes = (".csv", ".tsv")
    example = "id,title,text ⏎ d1,T,words"

    def records(self, path: Path, fields: Mapping[str, str]) -> Iterator[tuple[str, Columns, Mapping[str, Any]]]:
        """As `RecordFormat.records`."""
        has_tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
        rows = text_files.table_rows(path, (lambda _: _OF_TABS) if has_tabs else _of_csv)
        _, names = next(rows, ("", []))
        if not names:
            return
        if has_tabs and _is_of_collection(names) and not any(fields.values()):
            rows, names = itertools.chain([(f"{path}, line 1", names)], rows), _ROW
        chosen = columns(names, fields, f"{path}, line 1")
        for at, row in rows:
            if len(row) != len(names):
                raise UserError(f"{at}: {len(row)} columns, and the first row has {len(names)}; mend the row")
            yield at, chosen, dict(zip(names, row))


def _is_of_collection(row: Sequence[str]) -> bool:
    """Whether a row is an id and a text, and not the names of two columns: question and answer, or id and the text."""
    is_row = len(row) == len(_ROW) and len(row[0].split()) == 1 and len(row[1].split()) > 1
    return is_row and not text_files.names_ids(row[0]) and not set(row).intersection(USUAL["text"])


def _of_csv(first: str) -> dict[str, Any]:
    """Spreadsheets write `;` where `,` is in numbers."""
    return {"delimiter": ";" if ";" in first and "," not in first else ","}
