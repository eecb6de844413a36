"""Files of text, a record a line, plain or compressed; and the texts of JSON records. Every error says where.

The limits are on what is unpacked, not on what is packed: a megabyte of gzip may hold a gigabyte.
"""

import codecs
import contextlib
import csv
import functools
import gzip
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.parsing import foreign_json

# Of a record (a line, a row, an object of an array) and of a file that is one document; and of a JSON file that is read
# as a whole.
MOST_BYTES = 64 << 20
MOST_OF_JSON = 4 * MOST_BYTES
MOST_SHOWN = f"{MOST_BYTES >> 20} MiB"

_GZIP = b"\x1f\x8b"  # its first bytes (RFC 1952), which are not UTF-8
# What files begin with that are packed in another way, or are other text.
_OTHERS = re.compile(
    rb"(?P<bzip2>BZh[1-9]1A)|(?P<xz>\xfd7zXZ)|(?P<zstd>\x28\xb5\x2f\xfd)|(?P<zip>PK\x03\x04)|"
    rb"(?P<_7z>7z\xbc\xaf\x27)|(?P<utf_16>\xff\xfe|\xfe\xff)"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ID_NAME = re.compile(r"_?id|[dpq]id|(?:doc|document|passage|query)id|[^\W\d]+[_-]id", re.IGNORECASE)


class TooLargeError(UserError):
    """There is more in a record or a file than is read at once."""


def byte_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, or of what it holds where it is a gzip, whatever its name.

    Raises:
      UserError: it is missing, unreadable, a broken gzip, UTF-16, packed in another way, or has a line of more than
        MOST_BYTES.
    """
    with _opened(path) as file:
        for number, line in enumerate(iter(functools.partial(file.readline, MOST_BYTES), b""), 1):
            if len(line) >= MOST_BYTES and not line.endswith(b"\n"):
                raise TooLargeError(
                    f"{path}, line {number}: longer than {MOST_SHOWN}; is it one record? Split it, or drop it"
                )
            yield line


def byte_pieces(path: Path, size: int) -> Iterator[bytes]:
    """As `byte_lines`, in pieces of at most `size` bytes, wherever lines end."""
    with _opened(path) as file:
        yield from iter(functools.partial(file.read, size), b"")


def whole(path: Path, most: int = 0, is_text: bool = False) -> bytes:
    """All bytes of a file, or of what it holds where it is a gzip, as they are.

    Raises:
      TooLargeError: it holds more than `most`, by default MOST_BYTES.
      UserError: it is missing, unreadable, or a broken gzip; or a text in UTF-16, or packed otherwise.
    """
    most = most or MOST_BYTES
    with _opened(path, is_text) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise TooLargeError(f"{path}: holds more than {most >> 20} MiB; split it")
    return content


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of text that are not empty, each after the place where it stands."""
    for number, line in enumerate(byte_lines(path), 1):
        at = f"{path}, line {number}"
        if text := decoded(line, at):
            yield at, text


def objects(path: Path, like: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines, plain or compressed, each after the place where it stands.

    Args:
      like: what an object is like, for errors.
    """
    for at, line in lines(path):
        record = foreign_json.parse(line, at)
        if not isinstance(record, dict):
            raise UserError(f"{at}: not a JSON object; one like {like} is needed")
        yield at, record


def table_rows(path: Path, dialect: Callable[[str], dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """The rows of CSV or TSV that are not empty, each after the place where it begins; it may go on over many lines.

    Args:
      dialect: gives the options of `csv.reader` for the first line.

    Raises:
      UserError: a quotation mark is not closed, or a row is longer than MOST_BYTES.
    """
    csv.field_size_limit(MOST_BYTES)  # Python's own, 128 KiB, is less than many documents
    size = 0

    def bounded() -> Iterator[str]:
        nonlocal size
        for line in itertools.chain([first], texts):
            size += len(line)
            if size > MOST_BYTES:
                raise csv.Error(f"the record is longer than {MOST_SHOWN}")
            yield line

    texts = (f"{decoded(line, f'{path}, line {number}')}\n" for number, line in enumerate(byte_lines(path), 1))
    first = next(texts, "")
    reader = csv.reader(bounded(), **{"strict": True, **dialect(first)})
    while True:
        at, size = f"{path}, line {reader.line_num + 1}", 0
        try:
            row = next(reader, None)
        except csv.Error as error:
            remedy = "close its quotation marks, double those within, no carriage return"
            raise UserError(f"{at}: {error}; mend the row: {remedy}") from error
        if row is None:
            return
        if row:
            yield at, row


def first_character(path: Path) -> str:
    """The first character that is not blank; empty where there is none."""
    for piece in byte_pieces(path, 1 << 10):
        if text := piece.removeprefix(codecs.BOM_UTF8).decode(errors="replace").lstrip():
            return text[0]
    return ""


def decoded(line: bytes, at: str) -> str:
    """A line of text that was read at `at`, without its end; empty where there are only blanks."""
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{at}: not UTF-8 ({error}); convert the file to UTF-8") from error
    return text if text.strip() else ""


def required(text: str, name: str, at: str) -> str:
    """A text that was read at `at`, if there is something in it.

    Raises:
      UserError: there are only blanks.
    """
    if not text.strip():
        raise UserError(f"{at}: the {name} is empty; write one, or drop it")
    return text


def names_ids(field: str) -> bool:
    """Whether the first field of a file is what people call a column of ids, so that its line names the columns."""
    return bool(_ID_NAME.fullmatch(field.strip()))


def string(record: Any, field: str, at: str, default: str | None = None) -> str:
    """A text field of a JSON object that was read at `at`. `default` stands for one that is missing or null."""
    value = record.get(field) if isinstance(record, dict) else None
    value = default if value is None else value
    if not isinstance(value, str):
        raise UserError(f"{at}: the field '{field}' is missing or not a string")
    refuse_surrogates(value, field, at)
    return value


def strings(record: Any, field: str, at: str) -> list[str]:
    """A field of a JSON object that was read at `at`, an array of texts."""
    values = record.get(field) if isinstance(record, dict) else None
    if not isinstance(values, list):
        raise UserError(f"{at}: the field '{field}' is missing or not an array of texts")
    names = [f"{field}[{number}]" for number in range(len(values))]
    return [string({name: value}, name, at) for name, value in zip(names, values)]


def refuse_surrogates(value: str, field: str, at: str) -> None:
    """Checks a field that was read at `at`."""
    if not value.isascii() and (half := _SURROGATE.search(value)):
        raise UserError(f"{at}: the field '{field}' has half of a surrogate pair ({half[0]!r} at {half.start()})")


@contextlib.contextmanager
def _opened(path: Path, is_text: bool = True) -> Iterator[IO[bytes]]:
    files.refuse_special(path)
    try:
        with open(path, "rb") as plain:
            is_packed = plain.read(2) == _GZIP
            plain.seek(0)
            with gzip.open(plain) if is_packed else plain as opened:
                file = cast(IO[bytes], opened)
                if is_text and (other := _OTHERS.match(file.read(6))):
                    kind = (other.lastgroup or "").strip("_").replace("_", "-")
                    raise UserError(f"{path}: this is {kind}; UTF-8 is read, plain or in a gzip: convert or unpack it")
                file.seek(0)
                yield file
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}); copy or download it again") from error
