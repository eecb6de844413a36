"""What every system of a run got for every question: per_query/SET/SPLIT.npz, for tests over questions.

queries   ids [Q], UTF-8
systems   names [S], as in results.json; so are metrics [M]
values    float32 [S, M, Q], fractions
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError

FOLDER = "per_query"
_REMEDY = "evaluate the run again"


class PerQuery(NamedTuple):
    """The values of every question of a set by one rule: see the head of this file."""

    queries: list[str]
    systems: list[str]
    metrics: list[str]
    values_SMQ: np.ndarray

    def of(self, system: str, metric: str) -> dict[str, float]:
        """Question -> value; empty where the system or the metric was not measured."""
        if system not in self.systems or metric not in self.metrics:
            return {}
        row_Q = self.values_SMQ[self.systems.index(system), self.metrics.index(metric)]
        return dict(zip(self.queries, row_Q.tolist()))


def path_of(folder: Path, dataset: str, split: str) -> Path:
    """Where the values of a set by a rule lie in a run's folder."""
    return folder / FOLDER / dataset / f"{split}.npz"


def write(path: Path, queries: Sequence[str], by_system: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Writes system -> metric -> values [Q]; every system has the same metrics."""
    metrics = list(next(iter(by_system.values())))
    values_SMQ = np.array([[by_metric[name] for name in metrics] for by_metric in by_system.values()], np.float32)
    names = {"queries": queries, "systems": list(by_system), "metrics": metrics}
    encoded: dict[str, Any] = {name: np.char.encode(np.array(texts, np.str_), "utf-8") for name, texts in names.items()}
    with files.atomic(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, values=values_SMQ, **encoded)


def read_all(folders: Iterable[Path], dataset: str, split: str) -> list[PerQuery]:
    """The values of a set by a rule, of each folder that has them.

    Raises:
      UserError: a file is damaged or is of another kind.
    """
    paths = [path_of(folder, dataset, split) for folder in folders]
    return [_read(path) for path in paths if path.is_file()]


def _read(path: Path) -> PerQuery:
    arrays = files.read_arrays(path, _REMEDY)
    names = [arrays.get(name, np.zeros(())) for name in ("queries", "systems", "metrics")]
    encoded = (array.astype("S").ravel().tolist() for array in names)
    queries, systems, metrics = ([text.decode("utf-8", "replace") for text in texts] for texts in encoded)
    values_SMQ = arrays.get("values", np.zeros(()))
    if values_SMQ.dtype.kind != "f" or values_SMQ.shape != (len(systems), len(metrics), len(queries)):
        raise UserError(f"{path}: not the values of questions; {_REMEDY}")
    return PerQuery(queries, systems, metrics, values_SMQ)


def values_of(read: Iterable[PerQuery], system: str, metric: str) -> dict[str, float]:
    """Question -> value, of the first folder that has them; empty where none has."""
    return next(filter(None, (each.of(system, metric) for each in read)), {})


def differences(a: Mapping[str, float], b: Mapping[str, float]) -> np.ndarray:
    """What `a` is above `b`, for every question that both have."""
    return np.array([value - b[query] for query, value in a.items() if query in b])
