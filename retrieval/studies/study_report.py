"""study.md: the results of many runs side by side, beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from retrieval.evaluation import display, significance
from retrieval.files import write_json, write_text
from retrieval.libraries import figures
from retrieval.studies.claims import Cell, Claim, Report, StudyPlot, StudyTable
from retrieval.studies.study_results import KEY, Comparison, Measurement, Results, compare

_LEGEND = (
    "Values are in percent: the mean of n runs that differ by their seed alone ± their sample standard deviation "
    "(divisor n − 1); without ± it is a single run. In brackets: the paper's value. Bold: our best of a column among "
    "the rows with the same first label (among all rows, where there is one label). –: no result, see Missing."
)
_OUTCOMES = (
    "The unit is the pre-training (n of them; a run from scratch counts as one): what starts from the same one is "
    "averaged first. The difference is the mean over the n that both cells have, paired by seed; behind ± half of its "
    "95 % confidence interval (Student's t). p is of the same test, and p (Holm) corrected for all claims of this "
    "table. Holds, does not hold: the corrected p is below 0.05. Not distinguishable: it is not. One pre-training, one "
    "run: it may have been luck, so nothing is said; where there is a p, it is of a randomisation test over the same "
    "questions, which is about these two models alone, and corrected by itself."
)
_BARS = "Error bars: one standard deviation over the runs of a point, where there are several."
_LACKS = 4  # rows that a run lacks, of which so many are told
_COLOURS, _MARKERS, _STYLES = 10, "os^Dv<>Pp*hX", ("-", "--", "-.", ":")


def write_study(results: Results, report: Report) -> None:
    """Writes `study.md`, `study.json` and `plots/*.png` into the folder of the study.

    A run that is not done, or without a row that a cell asks for, is listed under 'Missing'. A plot without any point
    is left out. The same input gives the same bytes. study.json has an object for every cell of the tables. It has the
    values in the order of the runs, mean, standard deviation and the paper's value, in percent.

    Raises:
      UserError: a results.json is not what `evaluate` writes.
    """
    folder = results.folder
    parts = [f"# {report.title}", *report.preamble, _LEGEND]
    for table in report.tables:
        parts += _table_section(table, results)
    if report.claims:
        parts += _claims_section(report.claims, results)
    figures = {plot.title: figure for plot in report.plots if (figure := _figure(plot, results))}
    missing, records = _missing_lines(report.cells, results), list(_records(report.tables, results))
    if figures:
        parts += ["## Plots", *(display.save(folder, figure, name) for name, figure in figures.items()), _BARS]
    if missing:
        parts += ["## Missing", "\n".join(missing)]
    write_json(folder / "study.json", records)
    write_text(folder / "study.md", "\n\n".join(parts) + "\n")


def _table_section(table: StudyTable, results: Results) -> list[str]:
    measured = [[results.measure(cell) for cell in row.cells] for row in table.rows]
    n = max((len(cell.runs) for row in table.rows for cell in row.cells), default=1)
    bold = _best(table, measured)
    rows = [
        [*row.labels, *(_text(value, n, (i, j) in bold) for j, value in enumerate(measured[i]))]
        for i, row in enumerate(table.rows)
    ]
    text = display.markdown(table.header, rows, left=len(table.rows[0].labels))
    return [f"## {table.title}", text, *_n_line(n), *filter(None, [table.notes])]


def _n_line(n: int) -> list[str]:
    return [f"n = {n} where a cell has ± and names no n."] if n > 1 else []


def _best(table: StudyTable, measured: Sequence[Sequence[Measurement]]) -> set[tuple[int, int]]:
    """(row, column) of the best value of each column and group, as shown. A value alone in its group is no best."""
    groups: dict[tuple[str, int], dict[tuple[int, int], float]] = {}
    for i, (row, values) in enumerate(zip(table.rows, measured)):
        label = row.labels[0] if len(row.labels) > 1 else ""
        for j, value in enumerate(values):
            if value.mean is not None:
                shown = round(value.mean, 2)
                groups.setdefault((label, j), {})[i, j] = -shown if value.cell.is_time else shown
    return {
        place
        for group in groups.values()
        for place, value in group.items()
        if len(group) > 1 and value == max(group.values())
    }


def _text(value: Measurement, n: int, bold: bool = False) -> display.Markup:
    """`33.20 ± 0.40, n=2 of 3 (37.43)`; n where it is not the `n` of the table."""
    text = "–" if value.mean is None else f"{value.mean:.2f}"
    text = f"**{text}**" if bold else text
    if value.deviation is not None:
        text += f" ± {value.deviation:.2f}"
    asked, present = len(value.cell.runs), len(value.present)
    if 0 < present < asked:
        text += f", n={present} of {asked}"
    elif present and 1 < asked < n:
        text += f", n={asked}"
    return display.Markup(text if value.cell.paper is None else f"{text} ({value.cell.paper:.2f})")


def _claims_section(claims: Sequence[Claim], results: Results) -> list[str]:
    runs = max(len(cell.runs) for claim in claims for cell in (claim.better, claim.worse))
    compared = [compare(results, claim.better, claim.worse) for claim in claims]
    header = ["Claim", "Higher, it says", "Lower, it says", "Difference", "n", "p", "p (Holm)", "Outcome"]
    rows = []
    for claim, comparison, corrected in zip(claims, compared, _corrected(compared)):
        means = [_text(results.measure(cell), runs) for cell in (claim.better, claim.worse)]
        tests = ["–" if value is None else f"{value:.4f}" for value in (comparison.p_value, corrected)]
        outcome = _outcome(comparison, corrected)
        rows.append([claim.text, *means, _with_margin(comparison), comparison.pretrainings, *tests, outcome])
    return ["## Claims of the paper", display.markdown(header, rows), *_n_line(runs), _OUTCOMES]


def _corrected(compared: Sequence[Comparison]) -> list[float | None]:
    """p-values by Holm: those over pre-trainings, and by themselves those over questions."""
    corrected: dict[int, float] = {}
    for over_questions in (False, True):
        family = {
            number: comparison.p_value
            for number, comparison in enumerate(compared)
            if comparison.p_value is not None and bool(comparison.questions) == over_questions
        }
        corrected.update(zip(family, significance.holm(list(family.values()))))
    return [corrected.get(number) for number in range(len(compared))]


def _with_margin(compared: Comparison) -> str:
    difference = "–" if compared.difference is None else f"{compared.difference:+.2f}"
    return difference if compared.margin is None else f"{difference} ± {compared.margin:.2f}"


def _outcome(compared: Comparison, corrected: float | None) -> str:
    if compared.difference is None:
        return "–"
    if compared.pretrainings == 1:
        unit = "one pre-training" if compared.shared else "one run"
        return f"{unit} ({compared.questions:,} questions)" if compared.questions else unit
    if corrected is None or corrected >= significance.LEVEL:
        return "not distinguishable"
    return "holds" if compared.difference > 0 else "does not hold"


def _figure(plot: StudyPlot, results: Results) -> figures.Figure | None:
    """The points that there are, with their standard deviations as error bars; None where there is not one."""
    figure, axes = display.figure(plot.title, plot.x, plot.y, size=(9, 4.8))
    drawn, lowest = set(), 0.0
    for number, line in enumerate(plot.lines):
        points = sorted(line.points, key=lambda point: point[0])
        measured = [(x, results.measure(cell)) for x, cell in points]
        measured = [(x, value) for x, value in measured if value.mean is not None]
        if measured:
            _draw(axes, number, line.label, measured)
            drawn |= {x for x, _ in measured}
            lowest = min(lowest, *((value.mean or 0) - (value.deviation or 0) for _, value in measured))
    if not drawn:
        return None
    if plot.log_x:
        display.log_ticks(axes, drawn)
    if lowest >= 0:
        axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small", handlelength=3.5)
    return figure


def _draw(axes: Any, number: int, label: str, points: Sequence[tuple[float, Measurement]]) -> None:
    """A line whose colour, marker and dashes follow from its number in the plot, also while others are missing."""
    axes.errorbar(
        [x for x, _ in points],
        [value.mean for _, value in points],
        yerr=[math.nan if value.deviation is None else value.deviation for _, value in points],
        color=f"C{number % _COLOURS}",
        marker=_MARKERS[number % len(_MARKERS)],
        linestyle=_STYLES[number % len(_STYLES)],
        markersize=5,
        capsize=3,
        label=display.label(label),
    )


def _missing_lines(cells: Sequence[Cell], results: Results) -> list[str]:
    """A line per run and what it lacks, in the order of the cells."""
    lacks = {}
    for cell in cells:
        for name, (*place, metric) in results.lacking(cell):
            lacks.setdefault(name, {}).setdefault(", ".join(place), {})[metric] = None
    return [f"- {name}: " + (_join(rows) if results.has(name) else "not done") for name, rows in lacks.items()]


def _join(rows: dict[str, dict[str, None]]) -> str:
    lacks = [f"no {place}: {', '.join(metrics)}" for place, metrics in rows.items()]
    more = [f"and {len(lacks) - _LACKS} rows more"] if len(lacks) > _LACKS else []
    return "; ".join(lacks[:_LACKS] + more)


def _records(tables: Sequence[StudyTable], results: Results) -> Iterator[dict[str, Any]]:
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.header[len(row.labels) :], row.cells):
                value = results.measure(cell)
                yield {
                    "table": table.title,
                    "labels": row.labels,
                    "column": column,
                    **dict(zip(KEY, cell.key)),
                    "runs": cell.runs,
                    "values": value.values,
                    "mean": value.mean,
                    "standard_deviation": value.deviation,
                    "paper": cell.paper,
                    "missing": list(dict.fromkeys(name for name, _ in results.lacking(cell))),
                }
