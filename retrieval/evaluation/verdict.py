"""What a report opens with: which system of a set is best by one metric, by how much, and whether that can be chance.

Systems are compared by the set's primary metric alone, so that Holm's correction is over these comparisons, and not
over all cells of a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrieval.evaluation import display, per_query, significance
from retrieval.evaluation.per_query import PerQuery

BM25, DENSE, HYBRID, START = "bm25", "dense", "hybrid", "start"
_PRICES = ("bytes a passage", "ms a query")
FEW = 100  # questions: of fewer a report says how little they tell
METHOD = (
    "Differences are in percentage points, with their 95 % interval (Student's t over the questions). p: paired "
    "randomisation test over the questions, by Holm's correction over the comparisons of the table. It is about these "
    "trained models: another training of the same kind may come out otherwise."
)

Pair = tuple[str, str]
_PAIRS = ((DENSE, BM25), (HYBRID, BM25), (HYBRID, DENSE), (DENSE, START))


class Comparison(NamedTuple):
    """What one system is above another on the same questions.

    Attributes:
      systems: the one, and the other.
      differences_Q: of the metric, a value for every question that both have.
      p_value: of a paired randomisation test, by Holm's correction over the comparisons of the set.
    """

    systems: Pair
    differences_Q: np.ndarray
    p_value: float

    @property
    def margin(self) -> float:
        """Half of the 95 % interval of the mean, in percentage points; infinite of one question."""
        return 100 * significance.margin(self.differences_Q.tolist()) if len(self.differences_Q) > 1 else np.inf

    @property
    def cells(self) -> tuple[str, str, str]:
        """The mean in percentage points, its 95 % interval, and the p-value."""
        mean = 100 * self.differences_Q.mean()
        interval = f"{mean - self.margin:+.2f} to {mean + self.margin:+.2f}"
        return f"{mean:+.2f}", interval, display.p_value(self.p_value)

    def of(self, system: str) -> Comparison:
        """The same with the system first that is one of the two."""
        one, other = self.systems
        return self if one == system else Comparison((other, one), -self.differences_Q, self.p_value)


def pairs_of(means: Mapping[str, float], more: Iterable[Pair]) -> list[Pair]:
    """The systems of a set that are compared: the usual ones, and the best with the next where it is in none of these.

    Args:
      means: of the primary metric, by system.
      more: further pairs.
    """
    pairs = [pair for pair in dict.fromkeys((*_PAIRS, *more)) if means.keys() >= set(pair)]
    best, *others = sorted(means, key=lambda system: -means[system])
    return pairs if not others or any(best in pair for pair in pairs) else [*pairs, (best, others[0])]


def tested(values: Sequence[PerQuery], pairs: Iterable[Pair], metric: str) -> list[Comparison]:
    """What the first system of each pair is above the second on the same questions."""
    differences: dict[Pair, np.ndarray] = {}
    for pair in pairs:
        differences_Q = per_query.differences(*(per_query.values_of(values, system, metric) for system in pair))
        if len(differences_Q) and pair[::-1] not in differences:
            differences[pair] = differences_Q
    p_values = significance.holm([significance.randomisation(each) for each in differences.values()])
    return [Comparison(*of, p_value) for of, p_value in zip(differences.items(), p_values)]


def comparison_table(comparisons: Sequence[Comparison], metric: str) -> str:
    """A row for each pair: the difference, and in how many questions the first is better, equal and worse."""
    counts = sorted({len(each.differences_Q) for each in comparisons})
    questions = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    rows = []
    for each in comparisons:
        won = " / ".join(f"{(np.sign(each.differences_Q) == sign).sum():,}" for sign in (1, 0, -1))
        rows.append(["{} over {}".format(*each.systems), *each.cells, won])
    header = [f"On the same {questions} questions", metric, "95 % interval", "p", "won / tied / lost"]
    return display.markdown(header, rows)


def sentences(
    best: str, result: str, questions: int, comparisons: Sequence[Comparison], costs: Mapping[str, Any]
) -> str:
    """The best system of a set, how sure that is, and what it costs, as a paragraph.

    Args:
      result: what it has, such as 'is best, with RR 61.23'.
      costs: by the columns of a table, of which `_PRICES` are told.
    """
    over = [each.of(best) for each in comparisons if best in each.systems]
    said = f"**{display.inline(best)}** {result} on {questions:,} questions"
    for number, each in enumerate(over):
        points, interval, p_value = each.cells
        chance = "" if each.p_value < significance.LEVEL else ", which may be chance"
        said += f"{', ' if number else ': '}{points} points over {display.inline(each.systems[1])}"
        said += f" (95 %: {interval}; {p_value}{chance})"
    if questions < FEW:
        least = max((each.margin for each in over), default=np.inf)
        few = f"differences below {least:.1f} points may be chance" if 0 < least < np.inf else "they tell nothing"
        said += f". **{questions} questions are few**: {few}"
    sure = [each.of(HYBRID) for each in comparisons if HYBRID in each.systems and each.p_value < significance.LEVEL]
    if better := [each.systems[1] for each in sure if each.differences_Q.mean() < 0]:
        said += f". The hybrid is worse than {' and '.join(better)}: search with {better[0]} alone"
    if prices := [f"{display.cell(costs[unit])} {unit}" for unit in _PRICES if costs.get(unit) is not None]:
        said += f". {display.inline(best)} takes {' and '.join(prices)}"
    return f"{said}."
