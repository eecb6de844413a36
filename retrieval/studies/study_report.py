"""study.md: the results of many runs beside those of the paper, and what becomes of its claims."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.common.errors import UserError
from retrieval.common.files import write_text
from retrieval.evaluation import display, significance
from retrieval.studies.claims import Cell, Claim, Report
from retrieval.studies.study_results import Comparison, Results, compare

_LEGEND = (
    "Values are in percent (ms: milliseconds): the mean of runs that differ by their seed alone ± their sample "
    "standard deviation; without ± it is a single run. In brackets: the paper's value. –: no result, see Missing."
)
_OUTCOMES = (
    "The unit is the pre-training (n of them; a run from scratch counts as one): what starts from the same one is "
    "averaged first. The difference is the mean over the n that both cells have, paired by seed; behind ± half of its "
    "95 % confidence interval (Student's t). p is of the same test, and p (Holm) corrected for all claims of this "
    "table. Holds, does not hold: the corrected p is below 0.05. Not distinguishable: it is not. One pre-training, one "
    "run: it may have been luck, so nothing is said; where there is a p, it is of a randomisation test over the same "
    "questions, which is about these two models alone, and corrected by itself. Of runs that test on parts of one set "
    "the interval is over the questions of all: with 0 in it, nothing can be told from so few."
)


def report_of(config: Any) -> Report:
    """What the study's config says to show.

    Raises:
      UserError: it says nothing.
    """
    if not isinstance(report := config.get("report"), Report):
        raise UserError("config.report is missing: give the study a Report of retrieval.studies.claims")
    return report


def write_study(folder: Path, report: Report, results: Results) -> None:
    """Writes `study.md`; the same input gives the same bytes.

    A run that is not done, or without a number that a cell asks for, is listed under 'Missing'.

    Raises:
      UserError: a file of a run is damaged, or a value cannot be shown.
    """
    compared = [compare(results, claim.better, claim.worse) for claim in report.claims]
    claims = list(zip(report.claims, compared, _corrected(compared)))
    parts = [f"# {report.title}", report.notes, _LEGEND]
    for table in report.tables:
        rows = [[*row.labels, *_texts(row.cells, row.paper, results)] for row in table.rows]
        left = len(table.rows[0].labels)
        parts += [f"## {table.title}", display.markdown(table.header, rows, left), *filter(None, [table.notes])]
    if claims:
        header = ["Claim", "Higher, it says", "Lower, it says", "Difference", "n", "p", "p (Holm)", "Outcome"]
        rows = [_claim_row(*claim, results) for claim in claims]
        parts += ["## Claims", display.markdown(header, rows), _OUTCOMES]
    if missing := "\n".join(_missing(report.cells, results)):
        parts += ["## Missing", missing]
    write_text(folder / "study.md", "\n\n".join(parts) + "\n")


def _texts(cells: Sequence[Cell], paper: Sequence[float | None], results: Results) -> Iterator[display.Markup]:
    """`33.20 ± 0.40, n=2 of 3 (37.43)`; n where a run has no value."""
    for place, cell in enumerate(cells):
        values = results.values(cell)
        present = [value for value in values if value is not None]
        text = f"{statistics.mean(present):.2f}" if present else "–"
        text += f" ± {statistics.stdev(present):.2f}" if len(present) > 1 else ""
        text += f", n={len(present)} of {len(values)}" if 0 < len(present) < len(values) else ""
        theirs = paper[place] if place < len(paper) else None
        yield display.Markup(text if theirs is None else f"{text} ({theirs:.2f})")


def _corrected(compared: Sequence[Comparison]) -> list[float | None]:
    """Holm's correction of the p-values over pre-trainings, and by itself of those over questions."""
    corrected: list[float | None] = [None] * len(compared)
    tested = [(number, each.p_value) for number, each in enumerate(compared) if each.p_value is not None]
    for over_questions in (False, True):
        family = [pair for pair in tested if bool(compared[pair[0]].questions) == over_questions]
        for (number, _), p_value in zip(family, significance.holm([p_value for _, p_value in family])):
            corrected[number] = p_value
    return corrected


def _outcome(compared: Comparison, corrected: float | None) -> str:
    if compared.difference is None:
        return "–"
    if compared.pretrainings == 1:
        unit = "one pre-training" if compared.shared else "one run"
        return f"{unit} ({compared.questions:,} questions)" if compared.questions else unit
    if corrected is None or corrected >= significance.LEVEL:
        return "not distinguishable"
    return "holds" if compared.difference > 0 else "does not hold"


def _claim_row(claim: Claim, compared: Comparison, corrected: float | None, results: Results) -> list[Any]:
    difference, margin = compared.difference, compared.margin
    text = "–" if difference is None else f"{difference:+.2f}" + ("" if margin is None else f" ± {margin:.2f}")
    tests = ["–" if p_value is None else f"{p_value:.4f}" for p_value in (compared.p_value, corrected)]
    means = _texts((claim.better, claim.worse), (), results)
    return [claim.text, *means, text, compared.pretrainings, *tests, _outcome(compared, corrected)]


def _missing(cells: Sequence[Cell], results: Results) -> Iterator[str]:
    """A line per run and what it lacks, in the order of the cells."""
    lacks: dict[str, list[str]] = {}
    for name, key in dict.fromkeys((name, cell.key) for cell in cells for name in cell.runs):
        if key not in results.of_run(name):
            lacks.setdefault(name, []).append(", ".join(key))
    for name, keys in lacks.items():
        more = f", and {len(keys) - 1} more" if keys[1:] else ""
        yield f"- {name}: no {keys[0]}{more}" if results.of_run(name) else f"- {name}: not done"
