"""A model's card against what was measured: which values differ, and which could not be measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from retrieval.data.sets.parquet_sets import NANOBEIR
from retrieval.evaluation import display, significance
from retrieval.evaluation.card_results import CardResult, folded
from retrieval.studies.over_sets import Standing, difference_cell, is_nanobeir

_NANOBEIR = "nanobeirmean"  # what sentence-transformers calls the mean, folded
_NOTE = (
    "Percentages; in brackets 95 % intervals of the difference by the bootstrap, so much do other queries change it. A "
    "difference above the tolerance of {:.2f} is more than numerical noise of the same model on the same files."
)


class Checked(NamedTuple):
    """A value of the card, and what was measured in its place.

    Attributes:
      difference, low, high: of what was measured over the card's value, fractions; with the ends of its interval.
    """

    result: CardResult
    measured: float
    difference: float
    low: float
    high: float


class Check(NamedTuple):
    """What became of a card's values.

    Attributes:
      left_out: why some could not be measured -> how many these are.
    """

    checked: Sequence[Checked]
    left_out: Mapping[str, int]

    def beyond(self, tolerance: float) -> list[Checked]:
        """The values that differ by more than `tolerance`, a fraction."""
        return [each for each in self.checked if abs(each.difference) > tolerance]


def check(results: Sequence[CardResult], measured: Standing, rules: Mapping[str, str]) -> Check:
    """Compares the results of a card with those of a model's towers.

    Args:
      rules: set -> the rule of relevance that was measured.
    """
    sets = {folded(name): name for name in rules}
    checked: list[Checked] = []
    left_out: Counter[str] = Counter()
    for result in results:
        of_sets = _measured(result, measured, rules, sets)
        if isinstance(of_sets, str):
            left_out[of_sets] += 1
            continue
        value = float(np.mean([values_Q.mean() for values_Q in of_sets]))
        low, high = (end - result.value for end in significance.bootstrap(of_sets))
        checked.append(Checked(result, value, value - result.value, low, high))
    return Check(checked, left_out)


def tables(name: str, found: Check, tolerance: float) -> list[str]:
    """What became of a card's values, as Markdown."""
    beyond = found.beyond(tolerance)
    rows = [
        [
            each.result.dataset,
            each.result.metric,
            f"{100 * each.result.value:.2f}",
            f"{100 * each.measured:.2f}",
            difference_cell(each.difference, each.low, each.high),
            "differs" if each in beyond else "",
        ]
        for each in found.checked
    ]
    shown = [f"## {display.inline(f'The card of {name}')}"]
    if rows:
        header = ["set", "metric", "card", "measured", "difference", f"beyond {100 * tolerance:.2f}"]
        shown += [display.markdown(header, rows, left=2), _NOTE.format(100 * tolerance)]
    if found.left_out:
        shown.append(display.markdown(["not measured, because", "values"], list(map(list, found.left_out.items()))))
    return shown


def _measured(
    result: CardResult, measured: Standing, rules: Mapping[str, str], sets: Mapping[str, str]
) -> list[np.ndarray] | str:
    """The values of the queries of the sets that a result is of, or why there are none."""
    if not result.is_retrieval:
        return f"the task is {result.task or 'not named'}, and not retrieval"
    if not result.metric:
        return "the metric is none of ours"
    of_metric = measured.of(result.metric)
    names = [sets[name] for name in sorted(result.names) if name in sets][:1]
    if _NANOBEIR in result.names and is_nanobeir(rules):
        names = list(rules)
    if not names:
        return f"no set {result.dataset} was given (--sets)"
    if not of_metric:
        return f"{result.metric} was not asked for (--metrics)"
    rule = rules[names[0]]
    if result.split not in ("", rule) and names[0] not in NANOBEIR:  # whose one split the hub calls 'train'
        return f"the card is about the split {result.split} of {result.dataset}, and {rule} was measured"
    return [of_metric[name] for name in names]
