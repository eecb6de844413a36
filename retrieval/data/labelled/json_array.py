"""The elements of a JSON array, one after the other: a file may be larger than the memory."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.parsing import foreign_json, text_files

_PIECE = 1 << 16
_BLANKS = " \t\r\n"


def read(path: Path) -> Iterator[tuple[str, Any]]:
    """Each object of the array that a file (.json or .json.gz) holds, after the place where it stands.

    Memory is that of the largest object. Its text is parsed anew only when it has doubled, so the time is linear.

    Raises:
      UserError: the file cannot be read, is not UTF-8 or not an array of objects; with the record and its character.
    """
    text, number = _Text(path), 0
    if (opening := text.peek()) != "[":
        raise UserError(f"{path}: begins with '{opening[:1]}', but a JSON array of objects is needed: [{{...}}, ...]")
    text.skip()
    while text.peek() != "]":
        number += 1
        at = f"{path}, record {number}"
        if number > 1:
            if text.peek() != ",":
                raise UserError(f"{at} (char {text.place}): not valid JSON, a comma or the end of the array is missing")
            text.skip()
        if text.peek() != "{":
            raise UserError(f"{at} (char {text.place}): not an object; the file has to be [{{...}}, ...]")
        yield at, text.value(at)
    text.skip()
    if text.peek():
        raise UserError(f"{path} (char {text.place}): not valid JSON, something follows the array")


class _Text:
    """The text of a file, from a place that moves on; `place` counts characters."""

    def __init__(self, path: Path):
        self._path = path
        self._pieces = self._decode()
        self._buffer = ""
        self._start = 0  # of what is left, in the buffer
        self._before = 0  # characters before the buffer

    @property
    def place(self) -> int:
        return self._before + self._start

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            rest = len(self._buffer)
            while self._start < rest and self._buffer[self._start] in _BLANKS:
                self._start += 1
            if self._start < rest or not self._grow():
                return self._buffer[self._start : self._start + 1]

    def skip(self) -> None:
        """Goes past the character that `peek` gave."""
        self._start += 1

    def value(self, at: str) -> Any:
        """The JSON value that begins here."""
        decoder = json.JSONDecoder(**foreign_json.NUMBERS)
        while True:
            before = self._before
            try:
                value, end = decoder.raw_decode(self._buffer, self._start)
                size = end - self._start
                if end < len(self._buffer) or not self._grow():  # else it may be a number that goes on
                    self._start += size
                    return value
            except foreign_json.BadNumberError as error:
                raise UserError(f"{at}: not valid JSON ({error})") from error
            except (ValueError, RecursionError) as error:
                size = len(self._buffer) - self._start
                if size > text_files.MOST_BYTES:
                    raise text_files.TooLargeError(
                        f"{at}: longer than {text_files.MOST_SHOWN}; is a bracket or a quotation mark of it not closed?"
                    ) from error
                if isinstance(error, RecursionError) or not self._grow(max(size, _PIECE)):
                    place = before + getattr(error, "pos", 0)
                    reason = getattr(error, "msg", "nested too deeply")
                    raise UserError(
                        f"{at} (char {place}): not valid JSON ({reason}); the file is cut off, or no array of objects"
                    ) from error

    def _grow(self, more: int = _PIECE) -> bool:
        """Reads `more` characters, and forgets what lies before; False at the end of the file."""
        pieces, size = [], 0
        for piece in self._pieces:
            pieces.append(piece)
            size += len(piece)
            if size >= more:
                break
        self._before += self._start
        self._buffer = self._buffer[self._start :] + "".join(pieces)
        self._start = 0
        return size > 0

    def _decode(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        read = 0
        try:
            for piece in text_files.byte_pieces(self._path, _PIECE):
                read += len(piece)
                yield decoder.decode(piece)
            yield decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise UserError(f"{self._path}: not UTF-8 before byte {read} ({error.reason}); convert it") from error
