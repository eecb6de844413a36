"""What a study shows: tables, plots and claims over the results of many runs, as data or from plain dicts and lists."""

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from retrieval.errors import UserError, unknown_name
from retrieval.evaluation import display

MILLISECONDS = "ms"  # the metric of the split 'latency': as it is, not in percent, and less is better


@dataclass(frozen=True)
class Cell:
    """One number: the mean of a metric over runs.

    Attributes:
      runs: names of the runs, which differ by their seed alone, in the order of the seeds.
      system: 'bm25', 'dense', 'hybrid', 'untrained' ..., as in results.json; so are `metric`, `dataset` and `split`.
      paper: what the paper gives for it, in percent, or in milliseconds.
      over: of as many runs with the same seeds: the number is what this one's are above those, a gain.
      rivals: for each run, others of its seed; the one whose validation is best gives the value. For tables alone.
      chosen_by: the metric of validation that chooses among them.
    """

    runs: tuple[str, ...]
    system: str
    metric: str
    dataset: str
    split: str
    paper: float | None = None
    over: "Cell | None" = None
    rivals: tuple[tuple[str, ...], ...] = ()
    chosen_by: str = ""

    def __post_init__(self):
        at = f"cell {', '.join(self.key)}"
        if not self.runs or len(set(self.runs)) < len(self.runs):
            raise UserError(f"{at}: runs are {list(self.runs)}; name at least one run, and each once")
        lowest, highest = -math.inf if self.over else 0, math.inf if self.is_time or self.over else 100
        if self.paper is not None and not lowest <= self.paper <= highest:
            raise UserError(f"{at}: the paper's value {self.paper} is no {'time' if self.is_time else 'percentage'}")
        if self.over and len(self.over.runs) != len(self.runs):
            raise UserError(f"{at}: {len(self.runs)} runs over {len(self.over.runs)}; name one for each, of its seed")
        if self.rivals and (len(self.rivals) != len(self.runs) or not self.chosen_by):
            raise UserError(f"{at}: rivals need a list for each of the {len(self.runs)} runs, and chosen_by a metric")

    @property
    def is_time(self) -> bool:
        """Whether it is in milliseconds."""
        return self.metric == MILLISECONDS

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names its row in results.json."""
        return self.system, self.dataset, self.split, self.metric

    @property
    def all_runs(self) -> list[str]:
        """The runs that its value may come from, those of rivals and of what it is over too."""
        rivals = (name for names in self.rivals for name in names)
        return [*self.runs, *rivals, *(self.over.all_runs if self.over else ())]


@dataclass(frozen=True)
class Row:
    """A row of a table: its labels ('1%/99%', 'Transformer', 'MLM'), then its numbers."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class StudyTable:
    """A table of numbers, ours beside the paper's.

    Attributes:
      header: names of the label columns, then of the cell columns.
      rows: with as many labels, and as many cells, each. Rows with the same first label are compared with each other.
      notes: a paragraph below it.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: str = ""

    def __post_init__(self):
        at = f"table '{self.title}'"
        if not self.rows:
            raise UserError(f"{at} has no rows")
        expected = len(self.rows[0].labels), len(self.header) - len(self.rows[0].labels)
        for number, row in enumerate(self.rows):
            if (len(row.labels), len(row.cells)) != expected or not row.labels:
                raise UserError(
                    f"{at}, row {number} {list(row.labels)} has {len(row.labels)} labels and {len(row.cells)} cells, "
                    f"the header {len(self.header)} columns, of which {expected[0]} for labels as in the first row"
                )


@dataclass(frozen=True)
class Line:
    """A line of a plot: (x, cell) for every point."""

    label: str
    points: tuple[tuple[float, Cell], ...]

    def __post_init__(self):
        if len({x for x, _ in self.points}) < len(self.points):
            raise UserError(f"line '{self.label}' has two points at one x; seeds belong into one cell, as its runs")


@dataclass(frozen=True)
class StudyPlot:
    """A plot of percentages: `x` and `y` are the labels of its axes; `log_x` makes the x axis logarithmic."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    log_x: bool = False

    def __post_init__(self):
        if self.log_x and any(x <= 0 for line in self.lines for x, _ in line.points):
            raise UserError(f"plot '{self.title}': a logarithmic axis has no place for an x of 0 or below")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that says that `better` is higher than `worse`.

    The runs of both are in the order of the same seeds. What a seed draws, the test questions first of all, is in both.
    """

    text: str
    better: Cell
    worse: Cell

    def __post_init__(self):
        for cell in (self.better, self.worse):
            if cell.rivals or (cell.over and cell.over.rivals):
                raise UserError(f"claim '{self.text}': rivals are for tables alone; name one run for each seed")


@dataclass(frozen=True)
class Report:
    """All that a study shows.

    Attributes:
      title: the first heading.
      preamble: paragraphs below the title.
      claims: shown after the tables, with what our numbers say to each.
    """

    title: str
    preamble: tuple[str, ...]
    tables: tuple[StudyTable, ...]
    plots: tuple[StudyPlot, ...]
    claims: tuple[Claim, ...]

    def __post_init__(self):
        plots = [display.file_name(plot.title).lower() for plot in self.plots]
        for names in ([table.title for table in self.tables], plots):
            if twice := [name for name in names if names.count(name) > 1]:
                raise UserError(f"two tables or two plots of the study are named '{twice[0]}'; rename one")

    @property
    def cells(self) -> list[Cell]:
        """Those of the tables, of the claims and of the plots."""
        return [
            *(cell for table in self.tables for row in table.rows for cell in row.cells),
            *(cell for claim in self.claims for cell in (claim.better, claim.worse)),
            *(cell for plot in self.plots for line in plot.lines for _, cell in line.points),
        ]

    def check_runs(self, known: Collection[str]) -> None:
        """Checks that cells name runs of the study.

        Raises:
          UserError: one names another.
        """
        for cell in self.cells:
            for name in cell.all_runs:
                if name not in known:
                    raise unknown_name(f"run in cell {', '.join(cell.key)} of config.report", name, known)


def report(spec: Mapping) -> Report:
    """A report from plain data, with all of its fields.

    Raises:
      UserError: as `table`, or two tables or two plots have one name.
    """
    values = _fields(Report, spec, "config.report")
    return Report(
        _text(values["title"], "config.report.title"),
        tuple(_text(text, place) for place, text in _items(values["preamble"], "config.report.preamble")),
        tuple(table(one) for _, one in _items(values["tables"], "config.report.tables")),
        tuple(plot(one) for _, one in _items(values["plots"], "config.report.plots")),
        tuple(claim(one) for _, one in _items(values["claims"], "config.report.claims")),
    )


def table(spec: Mapping) -> StudyTable:
    """A table from plain data, every level a dict with the fields of its class, or a list.

    Raises:
      UserError: a field is unknown, missing or of the wrong kind, or a row does not fit the header; with its place.
    """
    values = _fields(StudyTable, spec, "table")
    at = f"table '{_text(values['title'], 'title of a table')}'"
    header = tuple(_text(name, place) for place, name in _items(values["header"], f"{at}, header"))
    rows = tuple(_row(row, place) for place, row in _items(values["rows"], f"{at}, row"))
    return StudyTable(values["title"], header, rows, _text(values["notes"], f"{at}, notes"))


def plot(spec: Mapping) -> StudyPlot:
    """A plot from plain data: lines are {'label', 'points'}, points are [x, cell].

    Raises:
      UserError: a field is unknown, missing or of the wrong kind; with its place.
    """
    values = _fields(StudyPlot, spec, "plot")
    at = f"plot '{_text(values['title'], 'title of a plot')}'"
    lines = tuple(_line(line, place) for place, line in _items(values["lines"], f"{at}, line"))
    if not isinstance(values["log_x"], bool):
        raise _wrong(f"{at}, log_x", "true or false", values["log_x"])
    return StudyPlot(
        values["title"], _text(values["x"], f"{at}, x"), _text(values["y"], f"{at}, y"), lines, values["log_x"]
    )


def claim(spec: Mapping) -> Claim:
    """A claim from plain data: {'text', 'better', 'worse'}.

    Raises:
      UserError: a field is unknown, missing or of the wrong kind; with its place.
    """
    values = _fields(Claim, spec, "claim")
    at = f"claim '{_text(values['text'], 'text of a claim')}'"
    return Claim(values["text"], _cell(values["better"], f"{at}, better"), _cell(values["worse"], f"{at}, worse"))


def _row(spec: Any, at: str) -> Row:
    values = _fields(Row, spec, at)
    labels = tuple(_text(label, place) for place, label in _items(values["labels"], f"{at}, label"))
    return Row(labels, tuple(_cell(cell, place) for place, cell in _items(values["cells"], f"{at}, cell")))


def _line(spec: Any, at: str) -> Line:
    values = _fields(Line, spec, at)
    label = _text(values["label"], f"{at}, label")
    return Line(label, tuple(_point(point, place) for place, point in _items(values["points"], f"{at}, point")))


def _point(spec: Any, at: str) -> tuple[float, Cell]:
    if not isinstance(spec, list | tuple) or len(spec) != 2:
        raise _wrong(at, "[x, cell]", spec)
    return _number(spec[0], f"{at}, x"), _cell(spec[1], at)


def _cell(spec: Any, at: str) -> Cell:
    values = _fields(Cell, spec, at)
    runs = tuple(_text(run, place) for place, run in _items(values.pop("runs"), f"{at}, run"))
    paper, over = values.pop("paper"), values.pop("over")
    rivals = tuple(
        tuple(_text(run, place) for place, run in _items(runs, place))
        for place, runs in _items(values.pop("rivals"), f"{at}, rivals")
    )
    over = over and _cell(over, f"{at}, over")
    texts = {name: _text(value, f"{at}, {name}") for name, value in values.items()}
    try:
        return Cell(
            runs, **texts, paper=None if paper is None else _number(paper, f"{at}, paper"), over=over, rivals=rivals
        )
    except UserError as error:
        raise UserError(f"{at}: {error}") from error


def _fields(kind: type, spec: Any, at: str) -> dict[str, Any]:
    """The fields of the dataclass `kind`: those of `spec`, and the defaults of the others."""
    if not isinstance(spec, Mapping):
        raise _wrong(at, "a dict", spec)
    known = {field.name: field.default for field in dataclasses.fields(kind)}
    for name in spec:
        if name not in known:
            raise unknown_name(f"field of {at}", str(name), known)
    values = known | dict(spec)
    lacking = [name for name, value in values.items() if value is dataclasses.MISSING]
    if lacking:
        raise UserError(f"{at} has no {', '.join(lacking)}")
    return values


def _items(spec: Any, at: str) -> Iterator[tuple[str, Any]]:
    """(place, item) for every item of a list."""
    if not isinstance(spec, list | tuple):
        raise _wrong(at, "a list of them", spec)
    return ((f"{at} {number}", item) for number, item in enumerate(spec))


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise _wrong(at, "a string", value)
    return value


def _number(value: Any, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(at, "a number", value)
    return value


def _wrong(at: str, expected: str, value: Any) -> UserError:
    return UserError(f"{at}: expected {expected}, not {str(value)[:80]!r}")
