"""What the runs of a study gave: cells as numbers, and the difference of two of them."""

import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.errors import UserError
from retrieval.evaluation import per_query, result_files, significance
from retrieval.evaluation.training_metrics import read_training
from retrieval.files import read_json
from retrieval.pipeline.records import verify_written
from retrieval.studies.claims import MILLISECONDS, Cell

# What is read of a run.
_READ = (result_files.NAME, result_files.RERANKED, result_files.ANSWERED, per_query.FOLDER, "metrics")
KEY = ("system", "dataset", "split", "metric")
_VALIDATED = ("training", "validation", "best")  # system, dataset and split of what chooses among rivals
BM25 = "bm25"  # also the beginning of the names of a second one
_DIGITS = 6  # what lies beyond is the noise of adding floats
_ROUNDED = 2e-4  # percentage points between equal differences: results.json has six digits of a fraction


@dataclass(frozen=True)
class Measurement:
    """What the runs of a cell gave, in percent or in milliseconds: a value for each run, None where there is none."""

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
    """The difference of two cells in percentage points, and how sure it is.

    The unit is the pre-training: seeds that go back to the same one, on either side, are averaged first.

    Attributes:
      difference: the mean over pre-trainings; None where no seed has both cells.
      margin: half of its 95 % confidence interval, by Student's t for pairs; None for fewer than two pre-trainings.
      p_value: of the same test; for a single run of each cell, of the randomisation test over its questions. None,
        and no margin either, where all differences are equal and not 0.
      pretrainings: how many there are; a run that starts from scratch counts as one.
      questions: how many the randomisation test had; 0 where it was not made.
      shared: whether a run starts from a pre-training: a single one is then one draw of it.
    """

    difference: float | None = None
    margin: float | None = None
    p_value: float | None = None
    pretrainings: int = 0
    questions: int = 0
    shared: bool = False


class Results:
    """The results of runs in the folder of a study, each read once.

    Attributes:
      folder: of the study, with a sub-folder per run.
    """

    def __init__(
        self,
        folder: Path,
        done: Collection[str],
        origins: Mapping[str, str] | None = None,
        failed: Collection[str] = (),
    ):
        """Makes the results of a study.

        Args:
          done: the runs whose results count; of the others there may be some of another table.
          origins: run -> the pre-training that it goes back to; a run that is not named starts from scratch.
          failed: the runs that were tried and ended with an error, such as a collapse.
        """
        self.folder = Path(folder)
        self._done, self._runs, self._origins = frozenset(done), {}, dict(origins or {})
        self._failed = frozenset(failed)

    def has(self, run: str) -> bool:
        """Whether the run has results at all."""
        return self._load(run) is not None

    def measure(self, cell: Cell) -> Measurement:
        """The values of a cell.

        Raises:
          UserError: a results.json is not what `evaluate` writes, or the value asked for is not a fraction.
        """
        values = tuple(self._value(run, cell) for run in self._chosen(cell))
        if cell.over:
            values = tuple(_difference(*pair) for pair in zip(values, self.measure(cell.over).values))
        return Measurement(cell, values)

    def lacking(self, cell: Cell) -> Iterator[tuple[str, tuple[str, ...]]]:
        """What values of a cell are missing for: runs, each with the key of a row that it lacks."""
        for place, chosen in enumerate(self._chosen(cell)):
            among = [cell.runs[place], *(cell.rivals[place] if cell.rivals else ())]
            names, key = [chosen, *sorted(self._failed.intersection(among))], cell.key
            if not chosen:
                names, key = among, (*_VALIDATED, cell.chosen_by)
            yield from ((name, key) for name in names if key not in (self._load(name) or {}))
        if cell.over:
            yield from self.lacking(cell.over)

    def origins(self, cell: Cell, place: int) -> set[str]:
        """The pre-trainings that a value of a cell rests on; of BM25, which learns nothing, the run itself."""
        run = cell.runs[place]
        origins = {run if _is_bm25(cell.system) else self._origins.get(run, run)}
        return origins | self.origins(cell.over, place) if cell.over else origins

    def per_query(self, cell: Cell) -> dict[str, float] | None:
        """Question -> value, of a cell with a single run; None where there are none, or it is no mean over questions.

        Raises:
          UserError: the file is damaged.
        """
        if len(cell.runs) != 1 or cell.over or not self.has(cell.runs[0]):
            return None
        read = result_files.of_queries(self.folder / cell.runs[0], cell.dataset, cell.split)
        measured = (values.of(cell.system, cell.metric) for values in read)
        return next((values for values in measured if values is not None), None)

    def _chosen(self, cell: Cell) -> Iterator[str]:
        """The run that gives each value: of rivals the best by validation, the first of equals; '' where one lacks.

        A rival that failed cannot win, and does not keep the others from it.
        """
        if not cell.rivals:
            yield from cell.runs
        for run, rivals in zip(cell.runs, cell.rivals):
            key = (*_VALIDATED, cell.chosen_by)
            able = [name for name in (run, *rivals) if name not in self._failed]
            found = {name: (self._load(name) or {}).get(key) for name in able}
            scores = {name: value[1] for name, value in found.items() if value is not None}
            yield max(scores, key=lambda name: scores[name]) if scores and len(scores) == len(found) else ""

    def _load(self, run: str) -> dict[tuple, tuple[str, float]] | None:
        if run not in self._runs:
            self._runs[run] = (run in self._done and _read(self.folder / run)) or None
        return self._runs[run]

    def _value(self, run: str, cell: Cell) -> float | None:
        at, value = (self._load(run) or {}).get(cell.key, ("", None))
        if cell.is_time:
            return value
        if value is not None and not 0 <= round(value, _DIGITS) <= 1:
            raise UserError(
                f"{at}, {', '.join(cell.key)}: {value} is not a fraction from 0 to 1, so a study cannot show it in "
                "percent"
            )
        return None if value is None else round(100 * value, _DIGITS)


def compare(results: Results, a: Cell, b: Cell) -> Comparison:
    """What `a` is above `b`, seed by seed: runs are in the order of the seeds, of which one cell may have more.

    A seed draws the questions of the test, so that much of what differs between the runs of a cell is in both cells.

    Raises:
      UserError: as `Results.measure`.
    """
    pairs = zip(results.measure(a).values, results.measure(b).values)
    differences = {place: value for place, pair in enumerate(pairs) if (value := _difference(*pair)) is not None}
    if not differences:
        return Comparison()
    rests_on = {place: results.origins(a, place) | results.origins(b, place) for place in differences}
    means = [
        round(statistics.mean(differences[place] for place in cluster), _DIGITS) for cluster in _clusters(rests_on)
    ]
    mean, count = round(statistics.mean(means), _DIGITS), len(means)
    if count > 1:
        are_equal = max(means) - min(means) <= _ROUNDED
        p_value = significance.p_value([round(mean, 3)] * count if are_equal else means)
        margin = None if p_value is None else round(significance.margin(means), _DIGITS)
        return Comparison(mean, margin, p_value, count)
    runs = {cell.runs[place] for cell in _with_over(a, b) for place in differences}
    shared = not set().union(*rests_on.values()) <= runs
    over = per_query.differences(results.per_query(a) or {}, results.per_query(b) or {})
    p_value = significance.randomisation(over) if len(over) else None
    return Comparison(mean, None, p_value, count, len(over), shared)


def _is_bm25(system: str) -> bool:
    """Whether a system is BM25 alone, such as 'bm25 (0.9, 0.4)': one with a '+' has a reranker or a second list."""
    return system.startswith(BM25) and "+" not in system


def _with_over(*cells: Cell) -> Iterator[Cell]:
    for cell in cells:
        yield cell
        if cell.over:
            yield from _with_over(cell.over)


def _clusters(names_of: Mapping[int, set[str]]) -> list[list[int]]:
    """The places in groups: two that share a name, be it by way of others, are in one."""
    clusters: list[tuple[set[str], list[int]]] = []
    for place, names in names_of.items():
        touching = [cluster for cluster in clusters if cluster[0] & names]
        clusters = [cluster for cluster in clusters if not cluster[0] & names]
        places = [*(other for _, members in touching for other in members), place]
        clusters.append((names.union(*(others for others, _ in touching)), places))
    return [places for _, places in clusters]


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else round(a - b, _DIGITS)


def _read(folder: Path) -> dict[tuple, tuple[str, float]]:
    """(system, dataset, split, metric) -> where it stands, and the fraction; of all that a run measured."""
    values, finished = {}, verify_written(folder, _READ)
    results = (_results(place / result_files.NAME) for place in result_files.folders(folder))
    others = _training(folder), _consistency(folder / "stages/rerank.json", finished.get("rerank", {}))
    for at, key, value in itertools.chain(*results, *others):
        if values.setdefault(key, (at, value))[1] != value:
            raise UserError(f"{at}: {value} is a second value of {', '.join(key)}; remove one")
    return values


def _results(path: Path) -> Iterator[tuple[str, tuple, float]]:
    rows = read_json(path)
    if not isinstance(rows, list):
        raise UserError(f"{path}: not a list of results; evaluate the run again")
    for number, row in enumerate(rows):
        at = f"{path}, row {number}"
        yield at, *_key_and_value(row, at)
    yield from _milliseconds(str(path), rows)


def _training(folder: Path) -> Iterator[tuple[str, tuple, float]]:
    """What training logged, as ('training', 'batch', 'step 40', 'recall@1').

    Scores of the validation questions are ('training', 'validation', 'step 40', 'RR'), and 'best' of all.
    """
    path, best = folder / "metrics" / "train.jsonl", {}
    for step, record in read_training(path):
        for name, value in record.items():
            if name.startswith("validation/"):
                metric = name.partition("/")[2]
                yield f"{path}, step {step}", ("training", "validation", f"step {step}", metric), value
                best[metric] = max(value, best.get(metric, value))
            elif name != "step":
                yield f"{path}, step {step}", ("training", "batch", f"step {step}", name), value
    yield from ((str(path), ("training", "validation", "best", metric), value) for metric, value in best.items())


def _consistency(path: Path, record: Mapping[str, Any]) -> Iterator[tuple[str, tuple, float]]:
    """The consistency factors of reranked lists, as ('TAS-B', SET, 'test', 'consistency with BM25@10')."""
    for row in (record.get("details") or {}).get("consistency", ()):
        for depth, value in row["factors"].items():
            yield str(path), (row["system"], row["set"], "test", f"consistency with {row['trained on']}@{depth}"), value


def _milliseconds(at: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, tuple, float]]:
    """The time of a search per query, as ('bm25', SET, 'latency', 'ms'). Some rules of a set judge fewer queries."""
    timed = [row for row in rows if row.get("seconds") and row.get("queries")]
    whole = {(row["system"], row["dataset"]): row for row in sorted(timed, key=lambda row: row["queries"])}
    for key, row in whole.items():
        yield at, (*key, "latency", MILLISECONDS), 1000 * row["seconds"] / row["queries"]


def _key_and_value(row: Any, at: str) -> tuple[tuple[str, ...], float]:
    fields = row if isinstance(row, dict) else {}
    parts, value = [fields.get(name) for name in KEY], fields.get("value")
    key = tuple(part for part in parts if isinstance(part, str))
    if len(key) < len(parts):
        raise UserError(f"{at}: not an object with {', '.join(KEY)} and value; evaluate the run again")
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{at}: the value of {', '.join(key)} is {value!r}, not a number; evaluate the run again")
    return key, value
