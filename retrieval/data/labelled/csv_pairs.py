"""Labelled queries as tables of text, whose first line names the columns: those of `record_fields`.

Between commas a field may stand in quotation marks; between tabs these mean nothing, as in MS MARCO's files.
"""

import csv
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.data.labelled import record_fields
from retrieval.data.labelled.grouping import Counts
from retrieval.data.labelled.labelled_format import Settings, register
from retrieval.data.labelled.record_format import RecordFormat
from retrieval.errors import UserError, first_line
from retrieval.parsing import text_files


@register
class CsvPairs(RecordFormat):
    """The format 'csv'."""

    name = "csv"
    what = "CSV or TSV whose first line names the columns, with the fields of JSON lines"
    setting = "--config.pairs.files=FILE.csv,FILE.tsv,…"
    example = "anchor,positive,negative⏎q,a,b"

    def records(self, path: Path, counts: Counts, names: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """As `RecordFormat.records`. A field that is empty has no value."""
        rows = _rows(path)
        at, header = next(rows, (str(path), []))
        if twice := [name for name in header if header.count(name) > 1]:
            raise UserError(f"{at}: two columns are called '{twice[0]}'; give one another name")
        for at, row in rows:
            if len(row) != len(header):
                raise UserError(f"{at}: {len(row)} fields, and the first line names {len(header)}: {', '.join(header)}")
            yield at, {name: value or None for name, value in zip(header, row)}

    def recognises(self, path: Path, line: str, settings: Settings) -> bool:
        """As `LabelledFormat.recognises`: the fields of the first line are names of columns."""
        names = record_fields.named(settings.fields)
        header = [name.strip(' "') for name in line.split("\t" if "\t" in line else ",")]
        try:
            ours = record_fields.renamed(dict.fromkeys(header), names, str(path))
            return len(header) > 1 and bool(record_fields.layout(list(ours), str(path), names=names))
        except UserError:
            return False


def _rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The fields of each record, after the place where it ends."""
    texts = _lines(path)
    first = next(texts, "")
    options: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if "\t" in first else {"strict": True}
    lines, number = text_files.CsvLines(itertools.chain([first], texts)), 0
    reader = csv.reader(lines, **options)
    try:
        for row in reader:
            lines.size = 0
            number = reader.line_num
            if row:
                yield f"{path}, line {number}", [field.strip() for field in row] if number == 1 else row
    except csv.Error as error:
        raise UserError(
            f"{path}, line {number + 1}: no CSV ({first_line(error)}); close its quotation marks"
        ) from error


def _lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(text_files.byte_lines(path), 1):
        text = text_files.decoded(line, f"{path}, line {number}")
        yield f"{text}\n"
