"""Files that say more about passages: one for all, or a folder with NAME.jsonl for each collection.

Their lines name passages by `_id`. Passages without a line, and lines of no passage, are counted.
"""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from retrieval.common.errors import UserError
from retrieval.search.index_kind import Texts

_log = logging.getLogger(__name__)

T = TypeVar("T")


def inputs(field: str, value: str) -> list[Path]:
    """The files that a field names: one, or those of a folder."""
    path = Path(value)
    named = sorted(path.glob("*.jsonl")) if value and path.is_dir() else [path] if value and path.is_file() else []
    if not named:
        what = "a folder without a .jsonl file" if path.is_dir() else "no such file"
        raise UserError(f"{field}={value}: {what if value else 'a file is needed'}; name a .jsonl file, or a folder")
    return named


def path_of(value: str, collection: str) -> Path:
    """The file of a collection."""
    return Path(value) / f"{collection}.jsonl" if Path(value).is_dir() else Path(value)


def by_passage(path: Path, lines: Iterable[tuple[str, T]], contents: Texts) -> tuple[dict[str, list[T]], str]:
    """What a file says about each passage, in its order, and what is counted, in words.

    All that is about passages is held in memory.

    Args:
      lines: the ids of passages, and what is said of them.

    Raises:
      UserError: no line is of a passage.
    """
    said: dict[str, list[T]] = {passage.id: [] for passage in contents.passages()}
    strange = 0
    for id, value in lines:
        if id in said:
            said[id].append(value)
        else:
            strange += 1
    without = sum(not values for values in said.values())
    if without == len(said):
        raise UserError(f"{path}: none of its {strange} lines is of a passage of '{contents.name}': mend the ids")
    counts = [f"{len(said) - without:,} of {len(said):,} passages"]
    counts += [f"{strange:,} lines of no passage"] if strange else []
    if strange or without:
        _log.warning("%s: it is about %s of '%s'", path, " and has ".join(counts), contents.name)
    return said, ", ".join(counts)


def ids(contents: Texts) -> Iterator[str]:
    """The ids of all passages, in order."""
    return (passage.id for passage in contents.passages())
