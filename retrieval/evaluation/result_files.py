"""Where the results of a run lie: `results.json` and `per_query/` in its folder, and in those of stages with systems of
their own."""

from collections.abc import Mapping
from pathlib import Path

from retrieval import files
from retrieval.evaluation import per_query
from retrieval.evaluation.per_query import PerQuery

RERANKED, ANSWERED = "reranked", "answered"
NAME = "results.json"
LATENCY = "latency.json"


def folders(folder: Path) -> list[Path]:
    """The folders of a run that have results, those of `evaluate` first."""
    return [place for place in (folder, folder / RERANKED, folder / ANSWERED) if (place / NAME).is_file()]


def rows(folder: Path) -> list[Mapping]:
    """The rows of every results.json of a run."""
    return [row for place in folders(folder) for row in files.read_json(place / NAME)]


def of_queries(folder: Path, dataset: str, split: str) -> list[PerQuery]:
    """The values of every question of a set by one rule, of each folder that has them."""
    read = (per_query.read(per_query.path_of(place, dataset, split)) for place in folders(folder))
    return [values for values in read if values]
