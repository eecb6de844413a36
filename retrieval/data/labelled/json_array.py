"""The elements of a JSON array, one after the other: a file may be larger than the memory."""

import codecs
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval.common.errors import UserError
from retrieval.common.parsing import foreign_json, text_files

_PIECE = 1 << 16
_BLANKS = re.compile("[ \t\r\n]*")
_DECODER = json.JSONDecoder(**foreign_json.NUMBERS)


def read(path: Path) -> Iterator[tuple[str, Any]]:
    """Each object of the array that a file (.json or .json.gz) holds, after the place where it stands.

    Memory is that of the largest object. Its text is parsed again only when it has doubled, so the time is linear.

    Raises:
      UserError: the file cannot be read, is not UTF-8 or not an array of objects; with the record and its character.
    """
    text, number = _Text(path), 0
    if (opening := text.peek()) != "[":
        raise UserError(f"{path}: begins with '{opening}', but a JSON array of objects is needed: [{{...}}, ...]")
    text.start += 1
    while text.peek() != "]":
        number += 1
        at = f"{path}, record {number}"
        if number > 1:
            if text.peek() != ",":
                raise UserError(f"{at} (char {text.place}): not valid JSON, a comma or the end of the array is missing")
            text.start += 1
        if text.peek() != "{":
            raise UserError(f"{at} (char {text.place}): not an object; the file has to be [{{...}}, ...]")
        yield at, text.object(at)
    text.start += 1
    if text.peek():
        raise UserError(f"{path} (char {text.place}): not valid JSON, something follows the array")


class _Text:
    """The text of a file, from a place that moves on.

    Attributes:
      start: of what is left, in the part of the text that is held.
    """

    def __init__(self, path: Path):
        self._path = path
        self._pieces = codecs.iterdecode(text_files.byte_pieces(path, _PIECE), "utf-8-sig")
        self._held, self._before, self.start = "", 0, 0

    @property
    def place(self) -> int:
        """Characters before what is left."""
        return self._before + self.start

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            self.start = next(_BLANKS.finditer(self._held, self.start)).end()
            if self.start < len(self._held) or not self._read_on():
                return self._held[self.start : self.start + 1]

    def object(self, at: str) -> Any:
        """The JSON object that begins here."""
        while True:
            try:
                value, self.start = _DECODER.raw_decode(self._held, self.start)
                return value
            except foreign_json.BadNumberError as error:
                raise UserError(f"{at}: not valid JSON ({error})") from error
            except (ValueError, RecursionError) as error:
                size, place = len(self._held) - self.start, self._before + getattr(error, "pos", self.start)
                if size > text_files.MOST_BYTES:
                    raise text_files.TooLargeError(
                        f"{at}: longer than {text_files.MOST_SHOWN}; is a bracket or a quotation mark of it not closed?"
                    ) from error
                if isinstance(error, RecursionError) or not self._read_on(size):
                    reason = getattr(error, "msg", "nested too deeply")
                    raise UserError(
                        f"{at} (char {place}): not valid JSON ({reason}); the file is cut off, or no array of objects"
                    ) from error

    def _read_on(self, more: int = 0) -> bool:
        """Reads a piece, or `more` characters, and forgets what lies before; False at the end of the file."""
        try:
            pieces = "".join(itertools.islice(self._pieces, 1 + more // _PIECE))
        except UnicodeDecodeError as error:
            raise UserError(f"{self._path}: not UTF-8 ({error.reason}); convert it") from error
        self._held, self._before, self.start = self._held[self.start :] + pieces, self.place, 0
        return bool(pieces)
