"""report.md and report.html: the results of a work directory as tables and plots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.common.files import write_text
from retrieval.common.libraries import figures, tickers
from retrieval.evaluation import display, per_query, significance
from retrieval.evaluation.metrics import cutoff, is_share
from retrieval.evaluation.per_query import PerQuery
from retrieval.evaluation.report_page import Plot, page
from retrieval.evaluation.result_files import read_training

_CURVES = {
    "Success": "queries with a right answer among the first k",
    "R": "right answers among the first k",
    "Answer": "questions with an answer in the first k passages",
}

Pair = tuple[str, str]
_PAIRS = (("dense", "bm25"), ("hybrid", "bm25"), ("hybrid", "dense"), ("dense", "start"))
_WON = "In how many questions a system is better than, the same as, and worse than the other."
DIFFERENCES = (
    "Differences are in percentage points. p: paired randomisation test over the questions, by Holm's correction over "
    "the table. It is about these trained models: another training of the same kind may come out otherwise."
)

Tested = Mapping[tuple[Pair, str], tuple[np.ndarray, float]]
"""Differences over the questions [Q] of a pair of systems by a metric, and their p-value by Holm's correction."""


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
) -> None:
    """Writes `report.md`, its plots in `plots/`, and `report.html` into the work directory `folder`.

    The same results give the same bytes. The training curves come from `metrics/train.jsonl`, where there is one. Every
    key that has 'loss' in it is a curve over 'step'; so is each share that was measured in validation.

    Args:
      folder: the work directory.
      title: the first heading.
      results: the rows of results.json. Data sets, systems and metrics are shown in the order of their first row.
      tables: what else is to be shown, after the results.
      evaluated: folders whose `per_query` files say how sure the differences are.
      compared: systems whose differences are shown, the first over the second, beside dense, BM25 and hybrid.

    Raises:
      UserError: a line of train.jsonl is not a JSON object with a step.
    """
    folder = Path(folder)
    parts: list[str | Plot] = []
    for (dataset, split), systems in _by_test_set(results).items():
        about, values = f"{dataset}, {split}", per_query.read_all(evaluated, dataset, split)
        above = tested(values, (*_PAIRS, *compared))
        parts += [f"## {display.inline(about)}", _results_table(systems)]
        if above:
            parts += differences_section(above)
        for metric in _CURVES:
            if figure := _recall_figure(systems, metric, about):
                parts.append(Plot(display.file_name(f"{metric.lower()}.{dataset}.{split}"), figure))
    parts = [f"# {display.inline(title)}", *(parts or ["Nothing was measured: there is no evaluation set."])]
    curves = folder / "metrics" / "train.jsonl"
    if losses := _curves(curves, lambda name, _: "loss" in name):
        parts += ["## Training", Plot("training-loss", _curves_figure("Training loss", "loss", losses))]
    if shares := _curves(curves, lambda name, value: name.startswith("validation/") and 0 <= value <= 1):
        parts += ["## Validation", Plot("validation", _curves_figure("Validation", "mean over the queries", shares))]
    for table in tables:
        rows = display.markdown(table.header, table.rows, table.left) if table.rows else ""
        parts += [f"## {display.inline(table.title)}", *filter(None, [rows, table.notes])]
    texts = [display.save(folder, part.figure, part.name) if isinstance(part, Plot) else part for part in parts]
    write_text(folder / "report.html", page(title, parts))
    write_text(folder / "report.md", "\n\n".join(texts) + "\n")


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


def tested(values: Sequence[PerQuery], pairs: Iterable[Pair]) -> Tested:
    """What the first system of a pair is above the second on the same questions, by each metric that both have."""
    differences: dict[tuple[Pair, str], np.ndarray] = {}
    metrics = filter(is_share, dict.fromkeys(metric for each in values for metric in each.metrics))
    for pair, metric in itertools.product(dict.fromkeys(pairs), metrics):
        differences_Q = per_query.differences(*(per_query.values_of(values, system, metric) for system in pair))
        if len(differences_Q) and (pair[::-1], metric) not in differences:
            differences[pair, metric] = differences_Q
    p_values = significance.holm([significance.randomisation(each) for each in differences.values()])
    return {key: (each, p_value) for (key, each), p_value in zip(differences.items(), p_values)}


def differences_section(tested: Tested) -> list[str]:
    """What one system is above another, and in how many questions it is better, equal and worse."""
    pairs, metrics = (list(dict.fromkeys(each)) for each in zip(*tested))
    counts = {len(differences_Q) for differences_Q, _ in tested.values()}
    questions = " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
    above, won = {}, {}
    for key, (differences_Q, p_value) in tested.items():
        above[key] = f"{100 * differences_Q.mean():+.2f} ({display.p_value(p_value)})"
        won[key] = " / ".join(f"{(np.sign(differences_Q) == sign).sum():,}" for sign in (1, 0, -1))

    def table(title: str, word: str, cells: Mapping[tuple[Pair, str], str]) -> str:
        rows = [[f"{pair[0]} {word} {pair[1]}", *(cells.get((pair, name), "") for name in metrics)] for pair in pairs]
        return display.markdown([title, *metrics], rows)

    first = table(f"On the same {questions} questions", "over", above)
    return [first, DIFFERENCES, table("Questions won / tied / lost", "against", won), _WON]


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
        shares = {
            cutoff(name): 100 * value for name, value in result["metrics"].items() if name.startswith(f"{metric}@")
        }
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
