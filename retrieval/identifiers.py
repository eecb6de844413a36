"""Ids of queries and documents in files whose columns stand between blanks, such as TREC run files."""

import re
from collections.abc import Iterable
from urllib.parse import quote

SEVERAL = -1  # the number of a name that several ids have

_BLANK = re.compile(r"\s")


def in_run_file(id: str) -> str:
    """An id as a run file has it: its blanks as in an address, `my notes.md` -> `my%20notes.md`."""
    return _BLANK.sub(lambda blank: quote(blank[0]), id)


def numbered(ids: Iterable[str]) -> dict[str, int]:
    """The number of each id, by its name in a run file; SEVERAL where two ids have one name: `a b` and `a%20b`."""
    numbers: dict[str, int] = {}
    for number, name in enumerate(map(in_run_file, ids)):
        numbers[name] = SEVERAL if name in numbers else number
    return numbers
