"""Which of some texts stand in others, word for word."""

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence

from retrieval.data.sets.splits import wording

LEAST = 4  # words: fewer stand together by chance

# Of scripts that put no space between words a letter is a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")

Words = tuple[Hashable, ...]


def words(text: str) -> Words:
    """The words of a text. Case, accents, spaces and punctuation make no difference."""
    return tuple(_WORD.findall(wording(text)))


class Occurrences:
    """Finds texts of LEAST words or more inside others. Words are of any kind, such as token ids."""

    def __init__(self, texts: Iterable[Words]):
        self._by_start: dict[Words, set[Words]] = {}
        for text in texts:
            if len(text) >= LEAST:
                self._by_start.setdefault(text[:LEAST], set()).add(text)

    def inside(self, text: Sequence[Hashable]) -> Iterator[Words]:
        """Those that stand in a text, each as often as it does."""
        for place in range(len(text) - LEAST + 1):
            for known in self._by_start.get(tuple(text[place : place + LEAST]), ()):
                if tuple(text[place : place + len(known)]) == known:
                    yield known
