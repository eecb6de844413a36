"""Texts that are nearly the same: most of their runs of three words are shared."""

import re
from collections.abc import Sequence

from retrieval.search.words import spans

_WORD = re.compile(r"\w+")
_RUN = 3  # words that are compared together
_LEAST = 0.8  # share of these that two texts have in common, of all that either has (Jaccard)


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """The runs of three words of a text, in lower case; of a shorter text the whole.

    In scripts without spaces a word is two neighbouring letters.
    """
    text = text.lower()
    words = _WORD.findall(text) if text.isascii() else [text[start:end] for start, end in spans(text)]
    return frozenset(tuple(words[place : place + _RUN]) for place in range(max(1, len(words) - _RUN + 1)))


def are_near(one: frozenset, other: frozenset) -> bool:
    """Whether two sets of runs share so much of what either has."""
    if min(len(one), len(other)) < _LEAST * max(len(one), len(other)):
        return False
    shared = len(one & other)
    return shared >= _LEAST * (len(one) + len(other) - shared)


def first_duplicates(texts: Sequence[str]) -> list[int]:
    """For each text the place of the first one that it is nearly the same as: its own where there is none before it.

    Every pair is compared, so this is for a list of hits and not for a corpus.
    """
    sets = [shingles(text) for text in texts]
    firsts: list[int] = []
    for place, one in enumerate(sets):
        before = (first for first in range(place) if firsts[first] == first and are_near(one, sets[first]))
        firsts.append(next(before, place))
    return firsts
