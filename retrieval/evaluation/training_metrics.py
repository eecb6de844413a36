"""metrics/train.jsonl, what training logged: an object of numbers for every step that was logged or validated."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval.errors import UserError


def read_training(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(step, record) of every line; nothing where there is no file.

    Raises:
      UserError: a line is not an object with a step.
    """
    if not path.is_file():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            record = json.loads(line)
            step = record["step"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not a JSON object with a 'step'; remove the line") from error
        yield step, record
