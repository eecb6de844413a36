"""Parquet: a row is a document, as `datasets` and pandas write them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval import text_files
from retrieval.data.corpora.articles import Dropped
from retrieval.data.corpora.document_format import Document, DocumentFormat, columns, register, too_large
from retrieval.errors import UserError, first_line

# A column of a row group that unpacks to more than so many bytes, and to so many times its size, is no text.
_MOST_OF_COLUMN, _MOST_PACKED = 4 * text_files.MOST_BYTES, 200

_TOO_LARGE = object()  # stands for a text


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
                schema, metadata = file.schema_arrow, file.metadata
            chosen = columns(schema.names, fields, str(path))
            names, number = [name for name in chosen if name], 0
            _refuse_bombs(path, metadata, names)
            texts = [name for name in names if "string" in str(schema.field(name).type)]
            with parquet.ParquetFile(path, read_dictionary=texts) as file:
                for batch in file.iter_batches(1024, columns=names):
                    for values in zip(*(_values(batch.column(name)) for name in names)):
                        number += 1
                        at = f"{path}, row {number}"
                        if _TOO_LARGE in values:
                            yield too_large(at)
                        else:
                            yield chosen.document(dict(zip(names, values)), at, f"{id}#{number}", self)
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: a text is not UTF-8 ({error}); write the file again") from error
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{path}: no whole Parquet file ({first_line(error)}); copy it again") from error


def _refuse_bombs(path: Path, metadata: Any, names: list[str]) -> None:
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            size = column.total_uncompressed_size
            if column.path_in_schema in names and size > max(
                _MOST_OF_COLUMN, _MOST_PACKED * column.total_compressed_size
            ):
                raise UserError(
                    f"{path}: the column '{column.path_in_schema}' unpacks to {size >> 20} MiB, over {_MOST_PACKED} "
                    "times its size; is it a text? Write it again with smaller row groups"
                )


def _values(column: Any) -> list[Any]:
    """The values of a column. A text that many rows share is unpacked once."""
    if not hasattr(column, "dictionary"):
        return column.to_pylist()
    shared = column.dictionary
    texts = shared.to_pylist() if shared.nbytes <= text_files.MOST_BYTES else [_text(text) for text in shared]
    return [None if row is None else texts[row] for row in column.indices.to_pylist()]


def _text(value: Any) -> Any:
    is_large = value.is_valid and value.as_buffer().size > text_files.MOST_BYTES
    return _TOO_LARGE if is_large else value.as_py()
