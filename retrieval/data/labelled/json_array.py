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
_FIRST, _NEXT = re.compile(r"\s*\[\s*(\S)?"), re.compile(r"\s*,?\s*(\S)?")
_DECODER = json.JSONDecoder(**foreign_json.NUMBERS)


def read(path: Path) -> Iterator[tuple[str, Any]]:
    """Each object of the array that a file (.json or .json.gz) holds, after the place where it stands.

    Memory is that of the largest object. Its text is parsed again only when it has doubled, so the time is linear.

    Raises:
      UserError: the file cannot be read, is not UTF-8 or not an array of objects; with the record.
    """
    if (opening := text_files.first_character(path)) != "[":
        raise UserError(f"{path}: begins with '{opening}', but a JSON array of objects is needed: [{{...}}, ...]")
    pieces = _decoded(path)
    held, place = "", 0
    for number in itertools.count(1):
        at, value = f"{path}, record {number}", None
        while value is None:
            match, problem = (_FIRST if number == 1 else _NEXT).match(held, place), "the file is cut off"
            if match and match[1] == "]":
                if any(piece.strip() for piece in itertools.chain([held[match.end() :]], pieces)):
                    raise UserError(f"{at}: stands behind the end of the array; the file has to be [{{...}}, ...]")
                return
            if match and match[1] and match[1] != "{":
                raise UserError(f"{at}: not an object; the file has to be [{{...}}, ...]")
            try:
                if match and match[1]:
                    value, place = _DECODER.raw_decode(held, match.start(1))
                    continue
            except (foreign_json.BadNumberError, RecursionError) as error:
                raise UserError(f"{at}: not valid JSON ({error}), or nested too deeply") from error
            except ValueError as error:
                problem = str(error)
            if (size := len(held) - place) > text_files.MOST_BYTES:
                problem = f"longer than {text_files.MOST_SHOWN}; is a bracket or a quotation mark of it not closed?"
                raise text_files.TooLargeError(f"{at}: {problem}")
            if not (more := "".join(itertools.islice(pieces, 1 + size // _PIECE))):
                raise UserError(f"{at}: not valid JSON ({problem}); copy or download the file again")
            held, place = held[place:] + more, 0
        yield at, value


def _decoded(path: Path) -> Iterator[str]:
    try:
        yield from codecs.iterdecode(text_files.byte_pieces(path, _PIECE), "utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason}); convert it") from error
