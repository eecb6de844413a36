"""Ids of queries and documents in files whose columns stand between blanks, such as TREC run files."""

import re
from urllib.parse import quote

_BLANK = re.compile(r"\s")


def in_run_file(id: str) -> str:
    """An id as a run file has it: its blanks as in an address, `my notes.md` -> `my%20notes.md`."""
    return _BLANK.sub(lambda blank: quote(blank[0]), id)
