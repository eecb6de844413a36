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


MAKERS: Table[AnswerMaker] = Table("maker of answers", "retrieval.data.answer_makers")


def chosen(text: str, spans: Sequence[Span], most: int, seed: int) -> list[str]:
    """Some of the candidates of a text, in their order there.

    Of those that overlap the longest stays, and of those that read the same the first. Where there are more than
    `most`, a hash of text and seed draws.
    """
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        if all(span.end <= other.start or other.end <= span.start for other in kept):
            kept.append(span)
    words = dict.fromkeys(text[start:end].strip() for start, end in sorted(kept))
    different = list({word.casefold(): word for word in reversed([*filter(None, words)])}.values())[::-1]
    drawn = sorted(different, key=lambda word: hashing.digest(str(seed), text, word))[:most]
    return [word for word in different if word in drawn]
