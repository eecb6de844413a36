"""Ids and numbers as files of others have them, checked.

Python also takes 1_0, digits of other scripts, NaN, and integers that no float can hold; none of them is a number here.
"""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files

SEVERAL = -1  # the number of a name that several ids have

_EXACT = 2.0**53  # from here on a float leaves integers out
_BLANK = re.compile(r"\s")
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*", re.ASCII)
_DECIMAL = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)
_LARGEST = (2 - 2**-23) * 2.0**127  # of float32


def of_value(value: Any, name: str, at: str) -> str:
    """The id that a record, which was read at `at`, has in the field `name`: a text or a whole number, as text.

    A number may be written as 1.0, as pandas does; it is the id '1'.

    Raises:
      UserError: it is something else.
    """
    if type(value) is float and value.is_integer() and abs(value) < _EXACT:
        value = int(value)
    return str(value) if type(value) is int else text_files.string({name: value}, name, at)


def in_run_file(id: str) -> str:
    """An id as a run file has it: its blanks as in an address, `my notes.md` -> `my%20notes.md`."""
    return _BLANK.sub(lambda blank: quote(blank[0]), id)


def numbered(ids: Iterable[str]) -> dict[str, int]:
    """The number of each id, by its name in a run file; SEVERAL where two ids have one name: `a b` and `a%20b`."""
    numbers: dict[str, int] = {}
    for number, name in enumerate(map(in_run_file, ids)):
        numbers[name] = SEVERAL if name in numbers else number
    return numbers


def integer(text: str) -> int:
    """The integer that a text is.

    Raises:
      ValueError: it is none, or has more than 18 digits.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def score(value: Any, name: str, at: str) -> float:
    """A number of 32 bits that was read at `at`, as a text or of JSON.

    Raises:
      UserError: it is none, or is not finite.
    """
    number: Any = float(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value
    if type(number) in (int, float) and abs(number) <= _LARGEST:
        return float(number)
    raise UserError(f"{at}: the {name} is {str(value)[:40]!r}; it must be a finite number of 32 bits")
