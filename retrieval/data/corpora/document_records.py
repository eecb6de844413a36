"""Files of records, of which each is a document: JSON lines, Parquet, CSV and TSV."""

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path

from retrieval.data.corpora.document_format import (
    Columns,
    Document,
    DocumentFormat,
    Given,
    columns,
    names_text,
    register,
)
from retrieval.errors import UserError
from retrieval.parsing import foreign_json, parquet_files, text_files

_ROW = ("id", "text")  # the columns of a collection.tsv


@register
class JsonDocuments(DocumentFormat):
    """Lines of a file may have different fields."""

    name = "jsonl"
    what = "JSON lines, a document each: BEIR's fields, or those that config.documents names"
    suffixes = (".jsonl", ".ndjson")
    example = '{"_id": "d1", "title": "T", "text": "words"}'

    def read(self, path: Path, given: Given) -> Iterator[Document]:
        """The records of a file, one after the other."""
        for number, (at, line) in enumerate(text_files.lines(path), 1):
            record = foreign_json.parse(line, at, "mend the line")
            if not isinstance(record, dict):
                raise UserError(f"{at}: {type(record).__name__}, where an object with fields belongs; mend the line")
            if isinstance(metadata := record.get("metadata"), dict):  # BEIR's
                record = {f"metadata.{name}": value for name, value in metadata.items()} | record
            yield columns(record, given.fields, at).document(record, at, f"{given.id}#{number}", self)


@register
class ParquetRows(DocumentFormat):
    """Row groups are read one after the other."""

    name = "parquet"
    what = "Parquet, a document each, with named columns"
    suffixes = (".parquet",)
    example = "columns id, title, text"

    def read(self, path: Path, given: Given) -> Iterator[Document]:
        """The rows of a file, one after the other."""
        chosen = columns(parquet_files.columns(path), given.fields, str(path))
        names = [name for name in chosen if name]
        for number, (at, record) in enumerate(parquet_files.rows(path, names), 1):
            yield chosen.document(record, at, f"{given.id}#{number}", self)


@register
class SeparatedValues(DocumentFormat):
    """Commas or semicolons, and quotes, in CSV; in TSV tabs alone, and quotes are letters like others."""

    name = "csv"
    what = "CSV or TSV, a document each, with named columns; or MS MARCO's collection.tsv"
    suffixes = (".csv", ".tsv")
    example = "id,title,text ⏎ d1,T,words"

    def read(self, path: Path, given: Given) -> Iterator[Document]:
        """The rows of a file, one after the other."""
        has_tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
        by_tabs = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        rows = text_files.table_rows(path, lambda first: by_tabs if has_tabs else {"delimiter": _delimiter(first)})
        _, names = next(rows, ("", []))
        if not names:
            return
        if has_tabs and _is_of_collection(names) and not (names_text(names) or any(given.fields.values())):
            rows, names = itertools.chain([(f"{path}, line 1", names)], rows), _ROW
            chosen = Columns("id", "", "text")
        else:
            chosen = columns(names, given.fields, f"{path}, line 1")
        for number, (at, row) in enumerate(rows, 1):
            if len(row) != len(names):
                raise UserError(f"{at}: {len(row)} columns, and the first row has {len(names)}; mend the row")
            yield chosen.document(dict(zip(names, row)), at, f"{given.id}#{number}", self)


def _is_of_collection(row: list[str]) -> bool:
    """Whether a row is an id and a text, and not the names of two columns: question and answer, or id and the text."""
    is_row = len(row) == len(_ROW) and len(row[0].split()) == 1 and len(row[1].split()) > 1
    return is_row and not text_files.names_ids(row[0])


def _delimiter(first: str) -> str:
    """That of CSV: spreadsheets write `;` where `,` is in numbers."""
    return ";" if ";" in first and "," not in first else ","
