"""report.md and report.html: the results of a work directory as tables and plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from retrieval.common.files import write_text
from retrieval.common.libraries import figures, tickers
from retrieval.evaluation import display, per_query, significance, verdict
from retrieval.evaluation.metrics import cutoff, is_share, main_rule, primary
from retrieval.evaluation.per_query import PerQuery
from retrieval.evaluation.report_page import page
from retrieval.evaluation.result_files import read_training
from retrieval.evaluation.verdict import Pair

_CURVES = {
    "Success": "queries with a right answer among the first k",
    "R": "right answers among the first k",
    "Answer": "questions with an answer in the first k passages",
}

Costs = Mapping[str, Mapping[str, Any]]
"""'SET, SYSTEM' -> column -> what the system costs; the first two are told in the verdict."""


@dataclass(frozen=True)
class Table:
    """A table that is shown as it is: corpus statistics, index parameters, recall of an index ...

    Attributes:
      title: the heading above it.
      header: the names of the columns.
      rows: the cells, text or numbers.
      notes: a paragraph of Markdown below it: where the numbers come from.
      left: the first columns, which have texts.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: str = ""
    left: int = 1


def write_report(
    folder: Path,
    title: str,
    results: Sequence[Mapping],
    tables: Sequence[Table] = (),
    evaluated: Sequence[Path] = (),
    compared: Sequence[Pair] = (),
    costs: Costs = MappingProxyType({}),
    notes: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Writes `report.md`, its plots in `plots/`, and `report.html` into the work directory `folder`.

    It opens with a verdict on every set, by the first rule of each; what else was measured and told follows, which the
    page folds. The same results give the same bytes. The training curves come from `metrics/train.jsonl`, where there
    is one. Every key that has 'loss' in it is a curve over 'step'; so is each share that was measured in validation.

    Args:
      folder: the work directory.
      title: the first heading.
      results: the rows of results.json. Data sets, systems and metrics are shown in the order of their first row.
      tables: what else is to be shown, after the results.
      evaluated: folders whose `per_query` files say how sure the differences are.
      compared: systems whose differences are shown, the first over the second, beside dense, BM25 and hybrid.
      costs: what a system costs, by 'SET, SYSTEM'.
      notes: paragraphs that are shown with a set, by its name.

    Raises:
      UserError: a line of train.jsonl is not a JSON object with a step.
    """
    folder = Path(folder)
    said, opened, folded, sets = list[str](), list[str](), list[str](), _by_test_set(results)
    for (dataset, split), systems in sets.items():
        about, metric = f"{dataset}, {split}", primary(name for of in systems.values() for name in of["metrics"])
        if metric and split == main_rule([rule for name, rule in sets if name == dataset]):
            values = per_query.read_all(evaluated, dataset, split)
            costs_of = {system: costs.get(f"{dataset}, {system}", {}) for system, _ in systems}
            sentences, *tables_of_set = _judged(metric, systems, values, compared, costs_of)
            said.append(f"**{display.inline(about)}**: {sentences}")
            opened += [f"## {display.inline(about)}", *tables_of_set]
            opened += [f"**Note**: {display.inline(note)}" for note in notes.get(dataset, ())]
        folded += [f"## {display.inline(about)}: all metrics", _results_table(systems)]
        for metric in _CURVES:
            if figure := _recall_figure(systems, metric, about):
                folded.append(display.save(folder, figure, f"{metric.lower()}.{dataset}.{split}"))
    curves = folder / "metrics" / "train.jsonl"
    if losses := _curves(curves, lambda name, _: "loss" in name):
        figure = _curves_figure("Training loss", "loss", losses)
        folded += ["## Training", display.save(folder, figure, "training-loss")]
    if shares := _curves(curves, lambda name, value: name.startswith("validation/") and 0 <= value <= 1):
        figure = _curves_figure("Validation", "mean over the queries", shares)
        folded += ["## Validation", display.save(folder, figure, "validation")]
    for table in tables:
        rows = display.markdown(table.header, table.rows, table.left) if table.rows else ""
        folded += [f"## {display.inline(table.title)}", *filter(None, [rows, table.notes])]
    parts = [f"# {display.inline(title)}", *(said or ["Nothing was measured: there is no evaluation set."]), *opened]
    write_text(folder / "report.html", page(folder, title, parts, folded))
    write_text(folder / "report.md", "\n\n".join([*parts, *folded]) + "\n")


def _judged(
    metric: str, systems: Mapping[tuple, Mapping], values: Sequence[PerQuery], compared: Sequence[Pair], costs: Costs
) -> list[str]:
    """The verdict on a set by a rule, and its tables: systems by the primary metric, with what they cost, and pairs.

    Args:
      costs: of each system.
    """
    means = {system: of["metrics"][metric] for (system, _), of in systems.items() if metric in of["metrics"]}
    columns, rows = list(dict.fromkeys(column for of in costs.values() for column in of)), []
    for system, mean in means.items():
        values_Q = list(per_query.values_of(values, system, metric).values())
        margin = f" ± {100 * significance.margin(values_Q):.2f}" if len(values_Q) > 1 else ""
        rows.append([system, f"{100 * mean:.2f}{margin}", *map(costs[system].get, columns)])
    best = max(means, key=lambda system: means[system])
    comparisons = verdict.tested(values, verdict.pairs_of(means, compared), metric)
    questions = max(of["queries"] for of in systems.values())
    result = f"{'is best, with' if len(means) > 1 else 'has'} {display.inline(metric)} {100 * means[best]:.2f}"
    said = verdict.sentences(best, result, questions, comparisons, costs[best])
    tables = [display.markdown(["System", metric, *columns], rows)]
    return [said, *tables, *([verdict.comparison_table(comparisons, metric)] if comparisons else [])]


def results_tables(results: Sequence[Mapping]) -> list[str]:
    """The rows of results.json as Markdown: a heading and a table for every data set and split."""
    return [
        part
        for (dataset, split), systems in _by_test_set(results).items()
        for part in (f"### {display.inline(f'{dataset}, {split}')}", _results_table(systems))
    ]


def _by_test_set(results: Sequence[Mapping]) -> dict[tuple, dict[tuple, dict]]:
    """(dataset, split) -> (system, step) -> {'queries', 'seconds', 'metrics': metric -> value}."""
    test_sets = {}
    for row in results:
        systems = test_sets.setdefault((row["dataset"], row["split"]), {})
        empty = {"queries": row["queries"], "seconds": row["seconds"], "metrics": {}}
        metrics = systems.setdefault((row["system"], row["step"]), empty)["metrics"]
        metrics.setdefault(row["metric"], row["value"])
    return test_sets


def _results_table(systems: Mapping[tuple, Mapping]) -> str:
    rows = [((*key, of["queries"]), of["metrics"], [of["seconds"]]) for key, of in systems.items()]
    return metric_table(["System", "Step", "Queries"], rows, ["Seconds"])


_Rows = Sequence[tuple[Sequence[Any], Mapping[str, float], Sequence[Any]]]


def metric_table(header: Sequence[str], rows: _Rows, behind: Sequence[str] = (), left: int = 1) -> str:
    """A table of metrics, shares in percent, of which the best value is bold.

    Args:
      header, behind: the columns before and behind those of the metrics.
      rows: what stands in the first columns, the metrics, and what stands in the last columns.
    """
    metrics = list(dict.fromkeys(metric for _, values, _ in rows for metric in values))
    best = {metric: max(values.get(metric, -math.inf) for _, values, _ in rows) for metric in metrics}

    def cell(metric: str, value: float | None) -> str:
        if value is None:
            return "–"
        if not is_share(metric):
            return f"{value:.4g}"
        return display.Markup(f"**{100 * value:.2f}**" if value == best[metric] else f"{100 * value:.2f}")

    cells = [[*first, *(cell(name, values.get(name)) for name in metrics), *last] for first, values, last in rows]
    return display.markdown([*header, *metrics, *behind], cells, left)


def _curves(path: Path, is_shown: Callable[[str, float], bool]) -> dict[str, dict[int, float]]:
    """Name -> step -> value, of the values that are shown. Of a step that was done again, the last value counts."""
    curves = {}
    for step, record in read_training(path):
        for name, value in record.items():
            if isinstance(value, int | float) and is_shown(name, value):
                curves.setdefault(name, {})[step] = value
    return curves


def _curves_figure(title: str, y: str, curves: Mapping[str, Mapping[int, float]]) -> figures.Figure:
    """Curves over the steps: name -> step -> value. Of a curve with many values the mean of neighbours is drawn."""
    figure, axes = display.figure(title, "step", y)
    for name, values in curves.items():
        steps, points = map(np.array, zip(*sorted(values.items())))
        if (width := len(steps) // 50) > 1:
            steps = steps[width // 2 :][: len(steps) - width + 1]
            points, name = np.convolve(points, np.ones(width) / width, "valid"), f"{name}, mean of {width} values"
        axes.plot(steps, points, marker="o" if len(steps) < 20 else "", markersize=3, label=display.label(name))
    axes.xaxis.set_major_locator(tickers.MaxNLocator(integer=True, min_n_ticks=1))  # at whole numbers, each once
    axes.xaxis.set_major_formatter("{x:,.0f}")
    display.legend(figure)
    return figure


def _recall_figure(systems: Mapping[tuple, Mapping], metric: str, title: str) -> figures.Figure | None:
    """`metric` at every cutoff, a line per system; None unless some system has two cutoffs."""
    figure, axes = display.figure(f"{title}: {_CURVES[metric]}", "k", f"{metric}@k, %")
    cutoffs = set[int]()
    for (system, step), result in systems.items():
        shares = {cutoff(name): 100 * of for name, of in result["metrics"].items() if name.startswith(f"{metric}@")}
        if len(shares) > 1:
            name, number = system if step is None else f"{system}, step {step:,}", len(axes.lines)
            # Later lines are thinner: one below them that is the same is still seen.
            width = max(1.0, 4 - number)
            axes.plot(*zip(*sorted(shares.items())), linewidth=width, marker=".", label=display.label(name))
            cutoffs |= shares.keys()
    if not cutoffs:
        return None
    axes.set_xscale("log")
    axes.set_xticks(sorted(cutoffs), [f"{k:,}" for k in sorted(cutoffs)])
    axes.xaxis.set_minor_locator(tickers.NullLocator())
    axes.set_ylim(bottom=0)
    display.legend(figure)
    return figure
