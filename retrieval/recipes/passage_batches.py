"""Passages as batches of rows that a model reads, whose shapes do not depend on the other passages."""

from collections.abc import Iterator, Sequence

import numpy as np

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary

_BUCKET = 32  # rows are padded to a multiple of so many tokens: few shapes to compile, little padding


def rows_of(vocabulary: Vocabulary, passages: Sequence[Candidate], length: int) -> list[list[int]]:
    """`[CLS] title [SEP] text [SEP]` of each passage, at most so long."""
    return [vocabulary.pair(title, text, length) for title, text in _tokens(vocabulary, passages)]


def cut(vocabulary: Vocabulary, passages: Sequence[Candidate], length: int) -> int:
    """How many passages have more tokens than such a row."""
    sizes = (len(title) + len(text) + 2 + bool(title) for title, text in _tokens(vocabulary, passages))
    return sum(size > length for size in sizes)


def _tokens(vocabulary: Vocabulary, passages: Sequence[Candidate]) -> Iterator[tuple[list[int], list[int]]]:
    """The tokens of each title and text."""
    titles, texts = (
        vocabulary.encode_batch([getattr(passage, part) for passage in passages]) for part in ("title", "text")
    )
    return zip(titles, texts)


def batches(rows: Sequence[Sequence[int]], count: int, longest: int) -> Iterator[tuple[list[int], np.ndarray]]:
    """Batches of `count` rows of about the same length, as the places of the rows and their token ids [count, M].

    Where there are fewer, the last rows are of padding.

    Args:
      longest: no row has more tokens, and none is padded to more.
    """

    def width(place: int) -> int:
        return min(-(-len(rows[place]) // _BUCKET) * _BUCKET, longest)

    waiting = sorted(range(len(rows)), key=width)
    while waiting:
        length = width(waiting[0])
        places = [place for place in waiting[:count] if width(place) == length]
        del waiting[: len(places)]
        yield places, padded([rows[place] for place in places], count, length)


def padded(rows: Sequence[Sequence[int]], count: int, length: int) -> np.ndarray:
    """Token ids as an array [count, length], zeros behind each row and behind the last."""
    ids = np.zeros((count, length), np.int32)
    for row, tokens in zip(ids, rows):
        row[: len(tokens)] = tokens
    return ids
