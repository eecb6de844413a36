"""What the runs of a study gave: cells as numbers, and the difference of two of them."""

import itertools
import math
import statistics
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.errors import UserError
from retrieval.evaluation import significance
from retrieval.evaluation.study import Cell
from retrieval.evaluation.training_metrics import read_training
from retrieval.files import read_json

KEY = ("system", "dataset", "split", "metric")
COSINE = "cosine"
# Values have six digits in results.json, so what lies beyond is the noise of adding floats.
_DIGITS = 6


@dataclass(frozen=True)
class Measurement:
    """What the runs of a cell gave, in percent: a value for each of its runs, None where there is none."""

    cell: Cell
    values: tuple[float | None, ...]

    @property
    def present(self) -> list[float]:
        """The values that there are."""
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        """Their mean; None where there is none."""
        return round(statistics.mean(self.present), _DIGITS) if self.present else None

    @property
    def deviation(self) -> float | None:
        """Their sample standard deviation (divisor n - 1); None for fewer than two."""
        return round(statistics.stdev(self.present), _DIGITS) if len(self.present) > 1 else None


class Comparison(NamedTuple):
    """The mean difference of two cells in percentage points, over the seeds that both have, and how sure it is.

    `margin` is half of its 95 % confidence interval, by Student's t for pairs: None for fewer than two seeds, as the
    difference is for none.
    """

    difference: float | None
    margin: float | None
    seeds: int


class Results:
    """The results of runs in the folder of a study, each read once.

    Attributes:
      folder: of the study, with a sub-folder per run.
    """

    def __init__(self, folder: Path, done: Collection[str]):
        """Args: done: the runs whose results count; of the others there may be some of another table."""
        self.folder = Path(folder)
        self._done, self._runs = frozenset(done), {}

    def has(self, run: str) -> bool:
        """Whether the run has results at all."""
        return self._load(run) is not None

    def measure(self, cell: Cell) -> Measurement:
        """The values of a cell.

        Raises:
          UserError: a results.json is not what `evaluate` writes, or the value asked for is not a fraction.
        """
        values = tuple(self._percent(run, cell) for run in cell.runs)
        if cell.over:
            values = tuple(_difference(*pair) for pair in zip(values, self.measure(cell.over).values))
        return Measurement(cell, values)

    def _load(self, run: str) -> dict[tuple, tuple[str, float]] | None:
        if run not in self._runs:
            self._runs[run] = (run in self._done and _read(self.folder / run)) or None
        return self._runs[run]

    def _percent(self, run: str, cell: Cell) -> float | None:
        at, value = (self._load(run) or {}).get(cell.key, ("", None))
        lowest = -1 if cell.metric == COSINE else 0
        if value is not None and not lowest <= round(value, _DIGITS) <= 1:
            raise UserError(
                f"{at}, {', '.join(cell.key)}: {value} is not a fraction from {lowest} to 1, so a study cannot show it "
                "in percent"
            )
        return None if value is None else round(100 * value, _DIGITS)


def compare(results: Results, a: Cell, b: Cell) -> Comparison:
    """What `a` is above `b`, seed by seed: runs are in the order of the seeds, of which one cell may have more.

    A seed draws the questions of the test, so that much of what differs between the runs of a cell is in both cells.

    Raises:
      UserError: as `Results.measure`.
    """
    pairs = zip(results.measure(a).values, results.measure(b).values)
    differences = [value for pair in pairs if (value := _difference(*pair)) is not None]
    seeds, mean, margin = len(differences), None, None
    if seeds:
        mean = round(statistics.mean(differences), _DIGITS)
    if seeds > 1:
        margin = round(significance.margin(differences), _DIGITS)
    return Comparison(mean, margin, seeds)


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else round(a - b, _DIGITS)


def _read(folder: Path) -> dict[tuple, tuple[str, float]]:
    """(system, dataset, split, metric) -> where it stands, and the fraction; of results, training and similarity."""
    values = {}
    for at, key, value in itertools.chain(
        _results(folder / "results.json"), _validations(folder), _similarities(folder / "similarity.json")
    ):
        if values.setdefault(key, (at, value))[1] != value:
            raise UserError(f"{at}: {value} is a second value of {', '.join(key)}; remove one")
    return values


def _results(path: Path) -> Iterator[tuple[str, tuple, float]]:
    rows = read_json(path) if path.is_file() else []
    if not isinstance(rows, list):
        raise UserError(f"{path}: not a list of results; evaluate the run again")
    for number, row in enumerate(rows):
        at = f"{path}, row {number}"
        yield at, *_key_and_value(row, at)


def _validations(folder: Path) -> Iterator[tuple[str, tuple, float]]:
    """The scores of the validation questions, as ('training', 'validation', 'step 40', 'RR')."""
    path = folder / "metrics" / "train.jsonl"
    for step, record in read_training(path):
        for name, value in record.items():
            if name.startswith("validation/"):
                yield f"{path}, step {step}", ("training", "validation", f"step {step}", name.partition("/")[2]), value


def _similarities(path: Path) -> Iterator[tuple[str, tuple, float]]:
    """The mean cosines of random texts, as ('trained', 'corpus', '64 tokens', 'cosine')."""
    for system, by_length in (read_json(path) if path.is_file() else {}).items():
        for length, value in by_length.items():
            yield str(path), (system, "corpus", f"{length} tokens", COSINE), value


def _key_and_value(row: Any, at: str) -> tuple[tuple[str, ...], float]:
    fields = row if isinstance(row, dict) else {}
    key, value = tuple(fields.get(name) for name in KEY), fields.get("value")
    if not all(isinstance(part, str) for part in key):
        raise UserError(f"{at}: not an object with {', '.join(KEY)} and value; evaluate the run again")
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{at}: the value of {', '.join(key)} is {value!r}, not a number; evaluate the run again")
    return key, value
