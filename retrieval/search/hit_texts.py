"""Texts of hits: which pieces of them a query has matched, and which are nearly the same.

Two texts are nearly the same where most of their runs of three words are shared.
"""

import re
from collections.abc import Collection, Iterable, Sequence

from retrieval.search.words import Words, spans

_WORD = re.compile(r"\w+")
_RUN = 3  # words that are compared together
_LEAST = 0.8  # share of these that two texts have in common, of all that either has (Jaccard)

Pieces = list[tuple[str, bool]]
"""A text in pieces, each with whether it is one of the wanted words. Joined, the pieces are the text."""


def marked(texts: Sequence[str], wanted: Collection[str], words: Words) -> list[Pieces]:
    """The pieces of each text.

    Args:
      wanted: words of the query, as `words` gives them.
      words: what counts as a word, and as the same word: 'Größen' may be 'große'.
    """
    places = [list(spans(text)) for text in texts]
    # Words come again, within a text and in others: each is looked at once.
    runs = dict.fromkeys(text[start:end] for text, spots in zip(texts, places) for start, end in spots)
    matched = {run for run, of_run in zip(runs, words.of(runs)) if any(word in wanted for word in of_run)}
    return [_pieces(text, [at for at in spots if text[slice(*at)] in matched]) for text, spots in zip(texts, places)]


def _pieces(text: str, matched: Iterable[tuple[int, int]]) -> Pieces:
    pieces, done = [], 0
    for start, end in matched:
        # Pairs of letters overlap.
        pieces += [(text[done:start], False), (text[max(start, done) : end], True)]
        done = end
    return [piece for piece in [*pieces, (text[done:], False)] if piece[0]]


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
