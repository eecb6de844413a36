"""Where the results of a run lie: `results.json` and `per_query/` in its folder, and in those of stages with systems of
their own."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from retrieval import files
from retrieval.errors import UserError
from retrieval.evaluation import per_query
from retrieval.evaluation.per_query import PerQuery

RERANKED, ANSWERED, LATE = "reranked", "answered", "late"
OF_STAGES = {"rerank": RERANKED, "answer": ANSWERED, "maxsim": LATE}  # those with systems of their own
NAME = "results.json"
_FIELDS = {"system", "dataset", "split", "metric", "value", "queries", "step"}  # of a row, at least


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
            raise UserError(
                f"{path}: not a list of results; its stage makes it again (evaluate, {', '.join(OF_STAGES)})"
            )
    return [row for _, value in read for row in value]


def of_queries(folder: Path, dataset: str, split: str) -> list[PerQuery]:
    """The values of every question of a set by one rule, of each folder that has them."""
    read = (per_query.read(per_query.path_of(place, dataset, split)) for place in folders(folder))
    return [values for values in read if values]
