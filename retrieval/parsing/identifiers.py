"""Ids of queries and documents: as records have them, and in files whose columns stand between blanks."""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from retrieval.parsing import text_files

SEVERAL = -1  # the number of a name that several ids have

_EXACT = 2.0**53  # from here on a float leaves integers out
_BLANK = re.compile(r"\s")


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
