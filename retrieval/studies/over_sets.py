"""Models over several evaluation sets: means with intervals, and what one is above another, set by set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrieval.data.sets.parquet_sets import NANOBEIR
from retrieval.errors import UserError
from retrieval.evaluation import display, per_query, result_files, significance
from retrieval.evaluation.card_results import library_name
from retrieval.studies.run_comparison import FinishedRun

_WORDS, _TOWERS = "bm25", "dense"
_RULE = "test"
_MEAN = "mean"
_INTERVALS = (
    "Percentages; in brackets 95 % intervals by the bootstrap over the queries. In the mean each set counts alike, and "
    "its interval is about other queries of these sets, not about other sets."
)
_TESTS = (
    "Differences are in percentage points on the same queries, with 95 % intervals by the bootstrap. p: paired "
    "randomisation test over the queries, by Holm's correction over the sets; that of the mean is one test of its own. "
    "It is about these trained models: other trainings of the same kind may come out otherwise."
)

_Values = Mapping[str, Mapping[str, float]]  # set -> query -> value


class Standing(NamedTuple):
    """What one system got.

    Attributes:
      name: as it is shown.
      score: how its embeddings are compared, 'cosine' or 'dot'; '' of words.
      values: of each metric.
    """

    name: str
    score: str
    values: Mapping[str, _Values]

    def of(self, metric: str) -> dict[str, np.ndarray]:
        """Set -> values [Q] by a metric."""
        return {name: np.array(list(of_set.values())) for name, of_set in self.values.get(metric, {}).items()}


class Row(NamedTuple):
    """A line of a comparison: a set, or the mean over all.

    Attributes:
      difference, low, high: fractions, and the ends of the interval.
      won, tied, lost: queries.
    """

    name: str
    difference: float
    low: float
    high: float
    p_value: float
    won: int
    tied: int
    lost: int


def standings(runs: Sequence[FinishedRun], metrics: Sequence[str]) -> list[Standing]:
    """BM25 of the first run, and the towers of each.

    Raises:
      UserError: a run has other sets than the first, or no towers.
    """
    rules = list(map(rules_of, runs))
    for run, of_run in zip(runs, rules):
        if of_run.keys() != rules[0].keys():
            raise UserError(
                f"{run.name} was evaluated on {', '.join(of_run)}, and {runs[0].name} on {', '.join(rules[0])}: "
                "evaluate both on the same sets"
            )
    found = [_standing(run, _TOWERS, run.name, of_run, metrics) for run, of_run in zip(runs, rules)]
    for standing in found:
        if not standing.values:
            raise UserError(f"{standing.name}: the run has no values of a system '{_TOWERS}': evaluate it again")
    words = _standing(runs[0], _WORDS, "BM25", rules[0], metrics)
    return [*([words] if words.values else []), *found]


def tables(found: Sequence[Standing], metrics: Sequence[str]) -> list[str]:
    """A table for each metric, of every set and the mean, as Markdown."""
    shown = []
    for metric in metrics:
        columns = [standing.of(metric) for standing in found]
        names = list(dict.fromkeys(name for column in columns for name in column))
        rows = [
            [name, len(columns[-1].get(name, ())), *(_cell([of[name]]) if name in of else "" for of in columns)]
            for name in names
        ]
        if len(names) > 1:
            whole = [list(of.values()) for of in columns]
            rows.append([mean_name(names), sum(map(len, whole[-1])), *map(_cell, whole)])
        header = [metric, "queries", *(standing.name for standing in found)]
        shown.append(display.markdown(header, rows))
    return [*shown, _INTERVALS]


def comparison(one: Standing, other: Standing, metric: str) -> list[Row]:
    """What one is above another on each set, and in the mean over them where there are several."""
    shared = [name for name in one.values.get(metric, {}) if name in other.values.get(metric, {})]
    differences = {name: per_query.differences(one.values[metric][name], other.values[metric][name]) for name in shared}
    of_sets = list(differences.values())
    p_values = significance.holm([significance.randomisation(each_Q) for each_Q in of_sets])
    rows = [_row(name, [of_set], p_value) for (name, of_set), p_value in zip(differences.items(), p_values)]
    if len(of_sets) > 1:
        # The mean over sets is that of the questions, each by the size of its set.
        count = sum(map(len, of_sets)) / len(of_sets)
        weighted_Q = np.concatenate([each_Q * count / len(each_Q) for each_Q in of_sets])
        rows.append(_row(mean_name(shared), of_sets, significance.randomisation(weighted_Q)))
    return rows


def comparison_table(one: str, other: str, metric: str, rows: Sequence[Row]) -> list[str]:
    """A comparison as Markdown."""
    cells = [
        [
            row.name,
            difference_cell(row.difference, row.low, row.high),
            display.p_value(row.p_value),
            f"{row.won:,} / {row.tied:,} / {row.lost:,}",
        ]
        for row in rows
    ]
    header = [metric, "difference", "p", "queries won / tied / lost"]
    return [f"## {display.inline(f'{one} over {other}')}", display.markdown(header, cells), _TESTS]


def difference_cell(difference: float, low: float, high: float) -> str:
    """A difference of fractions and its interval, in percentage points."""
    return display.Markup(f"{100 * difference:+.2f} [{100 * low:+.1f}, {100 * high:+.1f}]")


def named_values(standing: Standing) -> dict[str, Any]:
    """The values under the names that sentence-transformers' evaluators give: SET_cosine_ndcg@10, and of the mean.

    Of the 13 sets of NanoBEIR the mean is NanoBEIR_mean_cosine_ndcg@10; of others it is mean_cosine_ndcg@10.
    """
    score = f"_{standing.score}_" if standing.score else "_"
    found: dict[str, Any] = {}
    for metric in standing.values:
        of_sets, name = standing.of(metric), library_name(metric)
        found |= {f"{dataset}{score}{name}": float(values_Q.mean()) for dataset, values_Q in of_sets.items()}
        if len(of_sets) > 1:
            whole = "NanoBEIR_mean" if is_nanobeir(of_sets) else _MEAN
            found[f"{whole}{score}{name}"] = float(np.mean([values_Q.mean() for values_Q in of_sets.values()]))
            found[f"{whole}{score}{name}_interval"] = significance.bootstrap(list(of_sets.values()))
    return found


def is_nanobeir(names: Iterable[str]) -> bool:
    """Whether sets are the 13 of NanoBEIR."""
    return set(names) == NANOBEIR.keys()


def mean_name(names: Sequence[str]) -> str:
    """What a mean is of: a mean without its list of sets cannot be compared."""
    which = "NanoBEIR's" if is_nanobeir(names) else f"{len(names)} sets"
    return f"mean of {which}: {', '.join(names)}"


def rules_of(run: FinishedRun) -> dict[str, str]:
    """Set -> the rule of relevance that counts: 'test', or its first one."""
    rules: dict[str, list[str]] = {}
    for row in run.rows:
        rules.setdefault(row["dataset"], []).append(row["split"])
    return {name: _RULE if _RULE in of_set else of_set[0] for name, of_set in rules.items()}


def _standing(run: FinishedRun, system: str, name: str, rules: Mapping[str, str], metrics: Sequence[str]) -> Standing:
    values: dict[str, dict[str, Mapping[str, float]]] = {}
    for dataset, rule in rules.items():
        for of_set in result_files.of_queries(run.folder, dataset, rule):
            for metric in metrics:
                if of_queries := of_set.of(system, metric):
                    values.setdefault(metric, {})[dataset] = of_queries
    score = "cosine" if run.normalized else "dot"
    return Standing(name, "" if system == _WORDS else score, values)


def _cell(of_sets: Sequence[np.ndarray]) -> str:
    mean = np.mean([values_Q.mean() for values_Q in of_sets])
    low, high = significance.bootstrap(of_sets)
    return display.Markup(f"{100 * mean:.2f} [{100 * low:.1f}, {100 * high:.1f}]")


def _row(name: str, of_sets: Sequence[np.ndarray], p_value: float) -> Row:
    mean = float(np.mean([each_Q.mean() for each_Q in of_sets]))
    signs_Q = np.sign(np.concatenate(of_sets))
    won, tied, lost = (int((signs_Q == sign).sum()) for sign in (1, 0, -1))
    return Row(name, mean, *significance.bootstrap(of_sets), p_value, won, tied, lost)
