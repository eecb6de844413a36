"""Which of the spans that a reader found is the answer (Xiong et al. 2020, section 3.4)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from retrieval.evaluation.exact_match import normalised

# The weights of the reader that ProQA chooses from.
WEIGHTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0)


class Span(NamedTuple):
    """A span of a paragraph.

    Attributes:
      text: a slice of the paragraph's text, from character `start` on to before `end`.
      rank: of the paragraph among those that were read, from 0 on.
      reader: the score of the span, such as the sum of those of its ends.
      retriever: the score of its paragraph.
      score: what it is ranked by.
    """

    text: str
    rank: int
    start: int
    end: int
    reader: float
    retriever: float
    score: float = 0.0


def ranked(spans: Sequence[Span], weight: float, sums: bool = False) -> list[Span]:
    """The spans by `weight` * reader + (1 - `weight`) * retriever, best first.

    Of equal ones the one with the higher score of the reader comes first: with a weight of 0 the best of its paragraph.

    Args:
      sums: whether spans of equal text (by SQuAD's rule) are one answer, whose probability is the sum of theirs. The
        place is that of the best of them, and the paragraph's score the highest.
    """
    spans = _summed(spans) if sums else spans
    scored = [span._replace(score=weight * span.reader + (1 - weight) * span.retriever) for span in spans]
    return sorted(scored, key=lambda span: (-span.score, -span.reader))


def best_weight(
    questions: Sequence[Sequence[Span]], value: Callable[[int, str], float], sums: bool = False
) -> tuple[float, float]:
    """The weight in WEIGHTS whose answers are best on some questions, and their mean value; of equal ones the largest.

    Args:
      questions: the spans of each.
      value: of a question's number and an answer, which is '' where there is none.
    """
    means = [
        float(np.mean([value(number, text_of(ranked(spans, weight, sums))) for number, spans in enumerate(questions)]))
        for weight in WEIGHTS
    ]
    best = max(range(len(WEIGHTS)), key=lambda place: (means[place], place))
    return WEIGHTS[best], means[best]


def text_of(spans: Sequence[Span]) -> str:
    """The text of the first span; '' where there is none."""
    return spans[0].text if spans else ""


def _summed(spans: Sequence[Span]) -> list[Span]:
    groups: dict[str, list[Span]] = {}
    for span in spans:
        groups.setdefault(normalised(span.text), []).append(span)
    return [
        max(group, key=lambda span: span.reader)._replace(
            reader=float(np.logaddexp.reduce([span.reader for span in group])),
            retriever=max(span.retriever for span in group),
        )
        for group in groups.values()
    ]
