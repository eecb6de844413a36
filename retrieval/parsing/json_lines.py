"""Files of JSON lines, an object a line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.parsing import foreign_json, text_files


def objects(path: Path, like: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, plain or compressed, each after the place where it stands.

    Args:
      like: what an object is like, for errors.
    """
    for at, line in text_files.lines(path):
        record = foreign_json.parse(line, at)
        if not isinstance(record, dict):
            raise UserError(f"{at}: not a JSON object; one like {like} is needed")
        yield at, record
