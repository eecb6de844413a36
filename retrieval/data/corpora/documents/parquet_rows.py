"""Parquet: a row is a document, as `datasets` and pandas write them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from retrieval.data.corpora.document_format import Document, DocumentFormat, columns, register
from retrieval.errors import UserError, first_line
from retrieval.parsing import text_files

_ROWS = 64  # that are unpacked at a time


@register
class ParquetRows(DocumentFormat):
    """Row groups are read one after the other."""

    name = "parquet"
    what = "Parquet, a document each, with named columns"
    suffixes = (".parquet",)
    example = "columns id, title, text"

    def read(self, path: Path, id: str, fields: Mapping[str, str]) -> Iterator[Document]:
        """The rows of a file, one after the other."""
        import pyarrow
        from pyarrow import parquet

        number = 0
        try:
            with parquet.ParquetFile(path) as file:
                chosen = columns(file.schema_arrow.names, fields, str(path))
                names = [name for name in chosen if name]
                for batch in file.iter_batches(_ROWS, columns=names):
                    for values in zip(*(batch.column(name).to_pylist() for name in names)):
                        number += 1
                        at = f"{path}, row {number}"
                        if any(len(str(value)) > text_files.MOST_BYTES for value in values):
                            raise UserError(f"{at}: longer than {text_files.MOST_SHOWN}; split it")
                        yield chosen.document(dict(zip(names, values)), at, f"{id}#{number}", self)
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: a text is not UTF-8 ({error}); write the file again") from error
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{path}: no whole Parquet file ({first_line(error)}); copy it again") from error
