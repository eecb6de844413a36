"""Makers of answer candidates: words of a passage that a question may ask for. `config.generate.answers` names one.

A maker is one file of this package, or of a plugin: it overrides `spans`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from retrieval import hashing
from retrieval.registry import Table


class Span(NamedTuple):
    """A candidate: its first character, and the one behind its last."""

    start: int
    end: int


class AnswerMaker:
    """A maker of answer candidates.

    Attributes:
      name: in `config.generate.answers`.
      what: it proposes, in a line.
    """

    name: str
    what: str

    def check(self) -> None:
        """Checks that it can be used on this machine.

        Raises:
          UserError: something that it needs is not installed.
        """

    def spans(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """The candidates of each text, in any order; they may overlap."""
        raise NotImplementedError(f"the maker '{self.name}' of answers proposes nothing")


MAKERS: Table[AnswerMaker] = Table("maker of answers", file="maker")


def chosen(text: str, spans: Sequence[Span], most: int, seed: int, best: Sequence[Span] = ()) -> list[str]:
    """Some of the candidates of a text, in their order there.

    Of those that overlap the longest stays, and of those that read the same the first. Where there are more than
    `most`, a hash of text and seed draws.

    Args:
      best: candidates that come before all others, the first before the next.
    """
    kept: list[Span] = []
    for span in best:
        if len(kept) < most and _stands_apart(span, kept):
            kept.append(span)
    first = {text[start:end].strip().casefold() for start, end in kept}
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        if _stands_apart(span, kept):
            kept.append(span)
    different: dict[str, str] = {}
    for start, end in sorted(kept):
        if word := text[start:end].strip():
            different.setdefault(word.casefold(), word)
    drawn = sorted(
        different.values(), key=lambda word: (word.casefold() not in first, hashing.digest(str(seed), text, word))
    )
    return [word for word in different.values() if word in drawn[:most]]


def _stands_apart(span: Span, others: Sequence[Span]) -> bool:
    return all(span.end <= other.start or other.end <= span.start for other in others)
