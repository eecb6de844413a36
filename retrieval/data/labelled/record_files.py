"""Records of labelled examples as JSON lines, as Parquet, and as CSV or TSV whose first line names the columns.

TSV may also have lines of a question and an id, and no names.

A text is a string or {"docid": ..., "title": ..., "text": ...}; a field of JSON and Parquet has one text or an array of
them. Other fields, such as "prompt", are not read. Parquet is what training sets of Hugging Face's hub are;
a data set is a folder, as `snapshot_download` leaves it: data/train-00000-of-00002.parquet, data/test-....
"""

import csv
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from retrieval.common.errors import UserError, listed
from retrieval.common.parsing import parquet_files, text_files
from retrieval.data.labelled import record_fields
from retrieval.data.labelled.labelled_format import Settings, register
from retrieval.data.labelled.record_fields import CLASS, TWO
from retrieval.data.labelled.record_format import Record, RecordFormat


@register
class JsonLines(RecordFormat):
    """The format 'jsonl'."""

    name = "jsonl"
    what = "JSON lines, with the fields of sentence-transformers, Tevatron or BGE; others by config.pairs.fields"
    setting = "--config.pairs.files=FILE.jsonl,…"
    example = '{"anchor": "q", "positive": "a", "negative": "b"}'
    first = "{"

    def records(self, path: Path, names: Mapping[str, str]) -> Iterator[tuple[str, Record]]:
        """As `RecordFormat.records`."""
        return text_files.objects(path, '{"query": ..., "positive": ...}')


@register
class ParquetPairs(RecordFormat):
    """The format 'parquet', which files are known by and folders are taken for."""

    name = "parquet"
    what = "Parquet with the fields of JSON lines as columns; or a folder of it, whose train split is read"
    setting = "--config.pairs.files=FILE.parquet,FOLDER,…"
    example = "columns anchor, positive, negative"

    def records(self, path: Path, names: Mapping[str, str]) -> Iterator[tuple[str, Record]]:
        """As `RecordFormat.records`. Columns that are not read are not unpacked."""
        there = parquet_files.columns(path)
        for name in names.values():
            record_fields.require(name, there, str(path))
        ours = record_fields.renamed(dict(zip(there, there)), names, str(path))
        layout = record_fields.layout(list(ours), str(path), names)
        read = [ours[field] for field in layout.fields]
        field = ours[layout.labels] if layout.labels and layout.kind in (TWO, CLASS) else ""
        classes = parquet_files.class_names(path, field) if field else ()
        for at, record in parquet_files.rows(path, read):
            if classes and isinstance(number := record[field], int) and number != -1:
                if not 0 <= number < len(classes):
                    raise UserError(f"{at}: the {field} is {number}, of {len(classes)} classes, {listed(classes)}")
                record[field] = classes[number]
            yield at, record


@register
class CsvPairs(RecordFormat):
    """The format 'csv'. Between commas a field may stand in quotation marks; between tabs these mean nothing."""

    name = "csv"
    what = "CSV or TSV whose first line names the columns, with the fields of JSON lines"
    setting = "--config.pairs.files=FILE.csv,FILE.tsv,…"
    example = "anchor,positive,negative⏎q,a,b"

    def records(self, path: Path, names: Mapping[str, str]) -> Iterator[tuple[str, Record]]:
        """As `RecordFormat.records`. A field that is empty has no value."""
        by_tabs = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        rows = text_files.table_rows(path, lambda first: by_tabs if "\t" in first else {})
        at, header = next(rows, (str(path), []))
        if _is_label("\t".join(header)) and not self._is_header([name.strip() for name in header], names, path):
            rows, header = itertools.chain([(at, header)], rows), ["query", "positive_id"]
        header = [name.strip() for name in header]
        if twice := [name for name in header if header.count(name) > 1]:
            raise UserError(f"{at}: two columns are called '{twice[0]}'; give one another name")
        for at, row in rows:
            if len(row) != len(header):
                raise UserError(f"{at}: {len(row)} fields, and the first line names {len(header)}: {', '.join(header)}")
            yield at, {name: value or None for name, value in zip(header, row)}

    def recognises(self, path: Path, line: str, settings: Settings) -> bool:
        """As `LabelledFormat.recognises`: the fields of the first line are names of columns."""
        header = [name.strip(' "') for name in line.split("\t" if "\t" in line else ",")]
        is_header = self._is_header(header, record_fields.named(settings.fields), path)
        return len(header) > 1 and (is_header or _is_label(line))

    def _is_header(self, header: list[str], names: Mapping[str, str], path: Path) -> bool:
        try:
            ours = record_fields.renamed(dict.fromkeys(header), names, str(path))
            return bool(record_fields.layout(list(ours), str(path), names))
        except UserError:
            return False


def _is_label(line: str) -> bool:
    """Whether a line is a question, a tab and what may be an id: it has no blank."""
    return bool(re.fullmatch(r"[^\t]*\S[^\t]*\t[^\t\s]+", line.strip()))
