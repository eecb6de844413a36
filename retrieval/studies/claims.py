"""What a study shows, as its file says it in Python: tables of numbers beside the paper's, and claims to be judged."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from retrieval.common.errors import UserError, unknown_name

MILLISECONDS = "ms"  # the metric of the split 'latency': not in percent


@dataclass(frozen=True)
class Cell:
    """One number: the mean of a metric over runs.

    Attributes:
      runs: names of the runs, which differ by their seed alone, in the order of the seeds.
      system: 'bm25', 'dense', 'hybrid' ..., as in results.json; so are `dataset`, `split` and `metric`.
      pooled: whether the runs test on parts of one set: the number is the mean over the questions of all.
      over: of as many runs with the same seeds: the number is a gain, what this one's are above those.
    """

    runs: tuple[str, ...]
    system: str
    dataset: str
    split: str
    metric: str
    pooled: bool = False
    over: "Cell | None" = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names its row in results.json."""
        return self.system, self.dataset, self.split, self.metric

    def __str__(self) -> str:
        return ", ".join(self.key)

    def at(self, **changes: Any) -> "Cell":
        """The same with another system, dataset, split or metric, or over another cell."""
        return dataclasses.replace(self, **changes)

    def each(self, **values: Sequence[str]) -> list["Cell"]:
        """A row of cells that differ in one field: cell.each(metric=("RR", "R@100"))."""
        return [self.at(**{name: value}) for name, of in values.items() for value in of]


class Row(NamedTuple):
    """A row of a table: its labels, its numbers, and what the paper has for the first of them."""

    labels: Sequence[str]
    cells: Sequence[Cell]
    paper: Sequence[float | None] = ()


class Table(NamedTuple):
    """A table of numbers.

    Attributes:
      header: names of the columns of labels, then of those of cells.
      notes: a paragraph below it.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Row]
    notes: str = ""


class Claim(NamedTuple):
    """A sentence that says that `better` is higher than `worse`; their runs are in the order of the same seeds."""

    text: str
    better: Cell
    worse: Cell


class Report(NamedTuple):
    """All that a study shows; `notes` is a paragraph below the title."""

    title: str
    notes: str
    tables: Sequence[Table]
    claims: Sequence[Claim]

    @property
    def cells(self) -> list[Cell]:
        """Those of the tables and of the claims, with those that a gain is over."""
        cells = [cell for table in self.tables for row in table.rows for cell in row.cells]
        cells += [cell for claim in self.claims for cell in (claim.better, claim.worse)]
        return [one for cell in cells for one in (cell, cell.over) if one]

    def check(self, known: Collection[str]) -> None:
        """Checks that cells name runs of the study, each once, and that tables are whole."""
        for cell in self.cells:
            if not set(cell.runs) <= set(known):
                raise unknown_name(f"run in cell {cell} of the report", min(set(cell.runs) - set(known)), known)
            if not cell.runs or len(set(cell.runs)) < len(cell.runs) or len((cell.over or cell).runs) != len(cell.runs):
                raise UserError(f"cell {cell}: name runs, each once, and over another cell as many as that has")
        for table in self.tables:
            for row in table.rows:
                if len(row.labels) + len(row.cells) != len(table.header) or len(row.paper) > len(row.cells):
                    raise UserError(f"table '{table.title}', row {', '.join(row.labels)}: not of its columns")
