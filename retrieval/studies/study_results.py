"""What the runs of a study measured: cells as numbers, and the difference of two of them."""

import statistics
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from retrieval.common.errors import UserError
from retrieval.evaluation import per_query, result_files, significance
from retrieval.runs.pipeline.records import verify_written
from retrieval.studies.claims import MILLISECONDS, Cell

Key = tuple[str, str, str, str]  # system, dataset, split, metric

# What is read of a run.
_READ = (result_files.NAME, *result_files.OF_STAGES.values(), per_query.FOLDER, "metrics")
_DIGITS = 6  # what lies beyond is the noise of adding floats
_ROUNDED = 2e-4  # percentage points between equal differences: results.json has six digits of a fraction


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
    """The results of the runs of a study, each read once."""

    def __init__(self, folder: Path, done: Collection[str], origins: Mapping[str, str] | None = None):
        """Args:
        folder: of the study, with a sub-folder per run.
        done: the runs whose results count; of the others there may be some of other settings.
        origins: run -> the pre-training that it goes back to; a run that is not named starts from scratch.
        """
        self._folder, self._done, self._origins = Path(folder), frozenset(done), dict(origins or {})
        self._read: dict[str, dict[Key, float]] = {}

    def of_run(self, run: str) -> dict[Key, float]:
        """All that a run measured; nothing of one that is not done."""
        if run not in self._read:
            self._read[run] = read_values(self._folder / run) if run in self._done else {}
        return self._read[run]

    def values(self, cell: Cell) -> list[float | None]:
        """In percent, or in milliseconds: a value for each run, None where there is none.

        Raises:
          UserError: a file is damaged, or a value is no fraction.
        """
        if cell.pooled:
            over_Q = self.per_query(cell).values()
            return [round(100 * statistics.fmean(over_Q), _DIGITS) if over_Q else None]
        values: list[float | None] = []
        for run in cell.runs:
            value, is_time = self.of_run(run).get(cell.key), cell.metric == MILLISECONDS
            if value is not None and not (
                isinstance(value, int | float) and (is_time or -1 <= round(value, _DIGITS) <= 1)
            ):
                raise UserError(f"{self._folder / run}: {cell} is {value!r}, not a fraction")
            values.append(value if value is None else round(value if is_time else 100 * value, _DIGITS))
        return list(map(_difference, values, self.values(cell.over))) if cell.over else values

    def origins(self, cell: Cell, place: int) -> set[str]:
        """The pre-trainings that a value of a cell rests on; of BM25, which learns nothing, the run itself."""
        run, is_bm25 = cell.runs[place], cell.system.startswith("bm25") and "+" not in cell.system
        origins = {run if is_bm25 else self._origins.get(run, run)}
        return origins | self.origins(cell.over, place) if cell.over else origins

    def per_query(self, cell: Cell) -> dict[str, float]:
        """Question -> value, of a single run or of runs that are pooled; empty where one lacks them, or of other cells.

        Raises:
          UserError: the file is damaged.
        """
        if (len(cell.runs) != 1 and not cell.pooled) or cell.over or not all(map(self.of_run, cell.runs)):
            return {}
        values: dict[str, float] = {}
        for run in cell.runs:
            read = per_query.read_all(result_files.folders(self._folder / run), cell.dataset, cell.split)
            values |= per_query.values_of(read, cell.system, cell.metric)
        return values


def compare(results: Results, a: Cell, b: Cell) -> Comparison:
    """What `a` is above `b`, seed by seed: runs are in the order of the seeds, of which one cell may have more.

    A seed draws the questions of the test, so that much of what differs between the runs of a cell is in both cells.
    """
    pairs = enumerate(map(_difference, results.values(a), results.values(b)))
    differences = {place: value for place, value in pairs if value is not None}
    if not differences:
        return Comparison()
    rests_on = {place: results.origins(a, place) | results.origins(b, place) for place in differences}
    means = [round(statistics.mean(differences[place] for place in cluster), _DIGITS) for cluster in clusters(rests_on)]
    mean, count = round(statistics.mean(means), _DIGITS), len(means)
    if count > 1:
        are_equal = max(means) - min(means) <= _ROUNDED
        p_value = significance.p_value([round(mean, 3)] * count if are_equal else means)
        margin = None if p_value is None else round(significance.margin(means), _DIGITS)
        return Comparison(mean, margin, p_value, count)
    runs = {cell.runs[place] for cell in (a, a.over, b, b.over) if cell for place in differences}
    over = per_query.differences(results.per_query(a), results.per_query(b))
    p_value = significance.randomisation(over) if len(over) else None
    is_pooled = len(over) > 1 and (a.pooled or b.pooled)
    margin = round(100 * significance.margin(over.tolist()), _DIGITS) if is_pooled else None
    return Comparison(mean, margin, p_value, count, len(over), shared=not set().union(*rests_on.values()) <= runs)


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else round(a - b, _DIGITS)


def clusters(names_of: Mapping[int, set[str]]) -> list[list[int]]:
    """The places in groups: two that share a name, be it by way of others, are in one."""
    groups: list[tuple[set[str], list[int]]] = []
    for place, names in names_of.items():
        touching = [group for group in groups if group[0] & names]
        groups = [group for group in groups if not group[0] & names]
        groups.append((names.union(*(of for of, _ in touching)), [*(p for _, of in touching for p in of), place]))
    return [places for _, places in groups]


def read_values(folder: Path) -> dict[Key, float]:
    """All that a run measured: (system, dataset, split, metric) -> a fraction, or milliseconds.

    Beside the rows of results.json these are what training logged, ('training', 'batch', 'step 40', 'recall@1'), and
    of the validation questions ('training', 'validation', 'step 40', 'RR') and the 'best' of all steps; consistency
    factors, ('TAS-B', SET, 'test', 'consistency with BM25@10'); and the time of a search by its questions,
    ('bm25', SET, 'latency', 'ms').

    Raises:
      UserError: a file is damaged, or has two values of one key.
    """
    finished = verify_written(folder, _READ)
    values: dict[Key, float] = {}
    rows = result_files.rows(result_files.folders(folder))
    for row in rows:
        key = (row["system"], row["dataset"], row["split"], row["metric"])
        if values.setdefault(key, row["value"]) != row["value"]:
            raise UserError(f"{folder}: {row['value']} is a second value of {', '.join(key)}; evaluate the run again")
    timed = [row for row in rows if row["seconds"] and row["queries"]]
    for row in sorted(timed, key=lambda row: row["queries"]):  # some rules of a set judge fewer queries
        values[row["system"], row["dataset"], "latency", MILLISECONDS] = 1000 * row["seconds"] / row["queries"]
    for step, record in result_files.read_training(folder / "metrics" / "train.jsonl"):
        for name, value in record.items():
            dataset = "validation" if name.startswith("validation/") else "batch"
            metric = name.removeprefix("validation/")
            values["training", dataset, f"step {step}", metric] = value
            if dataset == "validation":
                best = "training", dataset, "best", metric
                values[best] = max(value, values.get(best, value))
    for row in (finished.get("rerank", {}).get("details") or {}).get("consistency", ()):
        for depth, value in row["factors"].items():
            values[row["system"], row["set"], "test", f"consistency with {row['trained on']}@{depth}"] = value
    return values
