"""Parquet: a row is a document, as `datasets` and pandas write them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from retrieval.data.corpora.articles import Dropped
from retrieval.data.corpora.document_format import Document, DocumentFormat, columns, register
from retrieval.errors import UserError, first_line


@register
class ParquetRows(DocumentFormat):
    """Row groups are read one after the other."""

    name = "parquet"
    what = "Parquet, a document each, with named columns"
    suffixes = (".parquet",)
    example = "columns id, title, text"

    def read(self, path: Path, id: str, fields: Mapping[str, str]) -> Iterator[Document | Dropped]:
        """The rows of a file, one after the other."""
        import pyarrow
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(path) as file:
                chosen = columns(file.schema_arrow.names, fields, str(path))
                names, number = [name for name in chosen if name], 0
                for batch in file.iter_batches(1024, columns=names):
                    for record in batch.to_pylist():
                        number += 1
                        yield chosen.document(record, f"{path}, row {number}", f"{id}#{number}", self)
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: a text is not UTF-8 ({error}); write the file again") from error
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{path}: no whole Parquet file ({first_line(error)}); copy it again") from error
