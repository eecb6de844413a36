"""What a report opens with: which list is best on a set, by how much, and whether chance alone could do that."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from retrieval.evaluation import display, metrics, significance

_MEANINGS = {
    "Success": "the share of questions with a right answer no lower than place {}",
    "R": "the share of the right answers that stand no lower than place {}",
    "Answer": "the share of questions with an answer in the first {} passages",
    "RR": "one over the place of the first right answer, in the mean over the questions",
    "nDCG": "how near to the top the right answers stand, 100 % at best",
    "AP": "the precision at the places of the right answers, in the mean",
}
_COMPARED = ("bm25", "dense", "trained", "start")  # with the best one, beside the next best

Pair = tuple[str, str]


class Difference(NamedTuple):
    """What one system is above another over the same questions.

    Attributes:
      mean: as a share; so is `margin`, half of its 95 % confidence interval.
      p_value: by Holm's correction over the report's table.
    """

    mean: float
    margin: float
    p_value: float


def compared(means: Mapping[str, float]) -> list[Pair]:
    """The best of some systems, by the means of a metric, with the next best and with those that everybody asks about.

    An approximate index beside the exact search of the same embeddings, such as 'dense (ScaNN)', is left out.
    """
    names = [name for name in means if name.partition(" (")[0] not in means.keys() - {name}]
    best, *others = sorted(names, key=lambda name: -means[name])
    return [(best, other) for other in dict.fromkeys([*others[:1], *(name for name in _COMPARED if name in others)])]


def sentence(
    about: str, questions: int, metric: str, means: Mapping[str, float], differences: Mapping[Pair, Difference]
) -> str:
    """The sentence about a set, as Markdown.

    Args:
      means: of the metric, by system.
      differences: of the pairs that `compared` gives, where the values of single questions are known.
    """
    where = f"on {display.inline(about)} ({questions:,} questions)"
    pairs = compared(means)
    best = display.inline(pairs[0][0] if pairs else next(iter(means)))
    value = f"{100 * max(means.values()):.2f} %"
    if not pairs:
        return f"There is one list {where}: {display.inline(metric)} of {best} is {value}."
    next_best = differences.get(pairs[0])
    which = f"{best} is first" if next_best is None else f"{best} is best"
    if next_best and next_best.p_value >= significance.LEVEL:
        which = "No list is clearly best"
    *clauses, last = [_clause(means, pair, differences.get(pair)) for pair in pairs]
    told = f"{', '.join(clauses)}{', and ' if clauses else ''}{last}"
    return f"**{which}** {where}: {display.inline(metric)} of {best} is {value}, {told}."


def meanings(names: Iterable[str]) -> str:
    """What some metrics are, in a line of Markdown; '' where none of them is explained."""
    known = {name: _MEANINGS.get(name.partition("@")[0].partition("(")[0], "") for name in dict.fromkeys(names)}
    told = [f"{display.inline(name)}: {text.format(metrics.cutoff(name))}" for name, text in known.items() if text]
    return f"{'; '.join(told)}." if told else ""


def _clause(means: Mapping[str, float], pair: Pair, difference: Difference | None) -> str:
    other, points = display.inline(pair[1]), 100 * (means[pair[0]] - means[pair[1]])
    words = f"{points:.2f} points above {other}" if round(points, 2) else f"the same as of {other}"
    if difference is None:
        return f"{words} (whether chance alone could do that is not known)"
    if not (difference.mean or difference.margin):
        return f"{words} on every question"
    low, high = (100 * (difference.mean + sign * difference.margin) for sign in (-1, 1))
    chance = ", which chance alone could do" if difference.mean and difference.p_value >= significance.LEVEL else ""
    return f"{words} (95 % interval {low:.2f} to {high:.2f}, {display.p_value(difference.p_value)}{chance})"
