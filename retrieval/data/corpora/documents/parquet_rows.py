"""Parquet: a row is a document, as `datasets` and pandas write them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from retrieval.data.corpora.document_format import Document, DocumentFormat, columns, register
from retrieval.parsing import parquet_files


@register
class ParquetRows(DocumentFormat):
    """Row groups are read one after the other."""

    name = "parquet"
    what = "Parquet, a document each, with named columns"
    suffixes = (".parquet",)
    example = "columns id, title, text"

    def read(self, path: Path, id: str, fields: Mapping[str, str]) -> Iterator[Document]:
        """The rows of a file, one after the other."""
        chosen = columns(parquet_files.columns(path), fields, str(path))
        names = [name for name in chosen if name]
        for number, (at, record) in enumerate(parquet_files.rows(path, names), 1):
            yield chosen.document(record, at, f"{id}#{number}", self)
