"""The maker of answers 'rules': dates, numbers and capitalised names, by patterns. It needs no download."""

import re
from collections.abc import Iterator, Sequence

from retrieval.methods.writer.answer_maker import MAKERS, AnswerMaker, Span

_MONTH = (
    "(?:January|February|March|April|May|June|July|August|September|October|November|December|"
    "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)"
)
_DATE = re.compile(
    rf"\b(?:{_MONTH}\.? \d{{1,2}}(?:, \d{{3,4}})?|\d{{1,2}} {_MONTH}\.?(?: \d{{3,4}})?|{_MONTH}\.? \d{{3,4}}"
    r"|(?:early |mid-|late )?\d{1,2}(?:st|nd|rd|th) century|\d{3,4} (?:BC|AD|BCE|CE)"
    r"|(?:1\d{3}|20\d{2})(?:s|[-–]\d{2,4})?)\b"
)
_NUMBER = re.compile(
    r"(?<![\w.,])[$€£]?\d+(?:,\d{3})*(?:\.\d+)?(?: ?%| (?:thousand|million|billion|trillion|percent|per cent|years?|"
    r"months?|days?|hours?|minutes?|seconds?|km|kilometres|kilometers|miles?|metres|meters|feet|kg|tons?|tonnes|people)\b)?"
)
_WORD = r"(?:(?:[A-Z]\.)+|(?:Dr|Mr|Mrs|Ms|St|Prof|Gen|Col|Mt)\.|[A-Z]\w*(?:['’&-]\w+)*)"
_NAME = re.compile(rf"\b{_WORD}(?: (?:of the|of|de la|de|von|van|and|the) {_WORD}| {_WORD})*")
_BEGINS = re.compile(r"(?:^|[.!?:][\"')\]]* +|\n\s*)$")
# Words that begin a sentence with a capital letter and are no names.
_COMMON = frozenset(
    "a an the this that these those he she it they we i you his her its their our in on at by of for from with to as "
    "and but or if when while where what which who how why there here after before during since until because although "
    "however also some many most all each every both other another one two three first second such no not then thus "
    "today later".split()
)


class Rules(AnswerMaker):
    """Patterns for English text."""

    name = "rules"
    what = "dates, numbers and capitalised names, by patterns for English"

    def spans(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """As `AnswerMaker.spans`."""
        for text in texts:
            found = [Span(*match.span()) for pattern in (_DATE, _NUMBER) for match in pattern.finditer(text)]
            yield [*found, *_names(text)]


def _names(text: str) -> Iterator[Span]:
    """Capitalised sequences. A common word that begins a sentence is no part of one."""
    for match in _NAME.finditer(text):
        start, end = match.span()
        if _BEGINS.search(text[max(0, start - 8) : start]):
            first = text[start:end].split(" ", 1)[0]
            if first.lower().strip(".'’") in _COMMON:
                start += len(first) + 1
        if end - start > 1 and text[start].isupper():
            yield Span(start, end)


MAKERS.register(Rules.name, Rules())
