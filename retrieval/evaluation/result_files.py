"""What a run measured: `results.json` in its folder, and in those of stages with systems of their own; and what its
training logged, metrics/train.jsonl, an object of numbers for every step that was logged or validated."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError

RERANKED, ANSWERED, LATE = "reranked", "answered", "late"
OF_STAGES = {"rerank": RERANKED, "answer": ANSWERED, "maxsim": LATE}  # those with systems of their own
NAME = "results.json"
_FIELDS = {"system", "dataset", "split", "metric", "value", "queries", "seconds", "step"}  # of a row, at least


def folders(folder: Path) -> list[Path]:
    """The folders of a run that have results, those of `evaluate` first."""
    places = (folder, *(folder / name for name in OF_STAGES.values()))
    return [place for place in places if (place / NAME).is_file()]


def rows(places: Iterable[Path]) -> list[Mapping]:
    """The rows of every results.json in some folders.

    Raises:
      UserError: a file is damaged, or somebody has changed it to something else.
    """
    read = [(place / NAME, files.read_json(place / NAME)) for place in places]
    for path, value in read:
        if not isinstance(value, list) or not all(isinstance(row, Mapping) and row.keys() >= _FIELDS for row in value):
            raise UserError(f"{path}: not a list of results; run its stage again (evaluate, {', '.join(OF_STAGES)})")
    return [row for _, value in read for row in value]


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
