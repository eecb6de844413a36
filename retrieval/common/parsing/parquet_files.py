"""Files of Parquet, one row after the other."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError, first_line
from retrieval.common.parsing import text_files

SUFFIX = ".parquet"
_MAGIC = b"PAR1"
_ROWS = 64  # that are unpacked at a time


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet does; one that cannot be read does not."""
    files.refuse_special(path)
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def columns(path: Path) -> list[str]:
    """The names of the columns, in order; a name may be there twice.

    Raises:
      UserError: the file is no whole Parquet file.
    """
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def class_names(path: Path, column: str) -> list[str]:
    """The names of the classes that a column numbers, as the library `datasets` writes them; none where it has none.

    Raises:
      UserError: the file is no whole Parquet file.
    """
    with _opened(path) as file:
        written = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        names = json.loads(written)["info"]["features"][column]["names"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def rows(path: Path, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The values of some columns, each row after the place where it stands. Row groups are read one after the other.

    Raises:
      UserError: the file cannot be read, two columns have one name, or a value is longer than MOST_BYTES.
    """
    number = 0
    with _opened(path) as file:
        if twice := [name for name in names if file.schema_arrow.names.count(name) > 1]:
            raise UserError(f"{path}: two columns are called '{twice[0]}'; give one another name")
        for batch in file.iter_batches(_ROWS, columns=list(names)):
            for values in zip(*(batch.column(name).to_pylist() for name in names)):
                number += 1
                at = f"{path}, row {number}"
                if any(len(str(value)) > text_files.MOST_BYTES for value in values):
                    raise UserError(f"{at}: longer than {text_files.MOST_SHOWN}; split it")
                texts = (value.decode() if isinstance(value, bytes) else value for value in values)  # it may not say so
                yield at, dict(zip(names, texts))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: a text is not UTF-8 ({error}); write the file again") from error
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        what = f"no whole Parquet file, or a column is of a type that is not read ({first_line(error)})"
        raise UserError(f"{path}: {what}; copy it again, or write the column as text") from error
