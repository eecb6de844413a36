"""What each system of a run costs.

Stages tell what their systems cost under the names here. A system that stands on others, such as a fusion, costs what
these cost too.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

BYTES, QUERY, PASSAGE = "bytes a passage", "query operations", "passage operations"
PARTS = "parts"  # the systems that one is fused from
AFTER = "after"  # the system whose results one ranks, in milliseconds of its own
TABLE = (BYTES, QUERY, PASSAGE, AFTER)  # what only this table shows
FREE = {QUERY: 0, PASSAGE: 0}  # of a system without an encoder

_MILLISECONDS = "milliseconds"
# What a table shows: the name of the column, what stages tell, and how many of that are one of the column's.
_COLUMNS = (
    ("bytes a passage", BYTES, 1),
    ("ms a query", _MILLISECONDS, 1),
    ("Mflop a query", QUERY, 1e6),
    ("Mflop a passage", PASSAGE, 1e6),
)
METHOD = (
    "Bytes are those of the files that are searched. "
    "Milliseconds are of a search without encoding the query; of a fusion or a reranked list also those of its parts. "
    "Operations encode a text of mean length: those of matrix products in the traced program, two for a "
    "multiplication and an addition."
)


def of_set(name: str) -> str:
    """Under which name the stage `encode` tells the operations of a set's texts."""
    return f"{name}, operations"


def bytes_of(paths: Iterable[Path], passages: int) -> float:
    """The bytes of files, for a passage."""
    return round(sum(path.stat().st_size for path in paths if path.is_file()) / max(1, passages), 1)


def of_systems(notes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Column -> what a system costs, by 'SET, SYSTEM'; None where that is not known.

    Args:
      notes: what stages tell of a system, by 'SET, SYSTEM'.
    """
    costs = {}
    for key in notes:
        name, _, system = key.partition(", ")
        of = {column: (_cost(notes, name, system, kept), unit) for column, kept, unit in _COLUMNS}
        costs[key] = {column: None if cost is None else cost / unit for column, (cost, unit) in of.items()}
    return costs


def _cost(notes: Mapping[str, Mapping[str, Any]], name: str, system: str, key: str) -> float | None:
    """What a system costs, with those that it stands on; None where that is not known of one of them."""
    note = notes.get(f"{name}, {system}", {})
    parts = note.get(PARTS, ())
    if parts and key == _MILLISECONDS:  # which have the parts' already
        return note.get(key)
    first = note.get(AFTER)
    below = [_cost(notes, name, part, key) for part in (*parts, *([first] if first else []))]
    own = 0 if parts else note.get(key)
    return None if own is None or None in below else own + sum(filter(None, below))
