"""Texts that are nearly the same: most of their runs of three words are shared.

Not every pair is compared: MinHash (Broder 1997) in bands. Two texts that share a share J of their runs of three words
have the same least hash with the chance J. They are compared where all four hashes of one of 16 bands are the same: at
J = 0.8 that is missed once in 5,000 pairs.
"""

import re
import zlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from retrieval.search.words import spans

_WORD = re.compile(r"\w+")
_RUN = 3  # words that are compared together
_LEAST = 0.8  # share of these that two texts have in common, of all that either has (Jaccard)
_BANDS, _ROWS = 16, 4


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


def first_duplicates(texts: Sequence[str], seed: int = 0) -> list[int]:
    """For each text the place of the first one that it is nearly the same as: its own where none before it is found.

    Args:
      seed: of the hashes.
    """
    generator = np.random.default_rng(seed)
    factors_H = generator.integers(1 << 62, size=_BANDS * _ROWS, dtype=np.uint64) * 2 + 1
    shifts_H = generator.integers(1 << 62, size=_BANDS * _ROWS, dtype=np.uint64)
    buckets: defaultdict[tuple[int, bytes], list[int]] = defaultdict(list)
    firsts: list[int] = []
    for place, text in enumerate(texts):
        runs = shingles(text)
        hashes_N = np.fromiter((zlib.crc32(" ".join(run).encode()) for run in runs), np.uint64, len(runs))
        least_H = ((factors_H[:, None] * hashes_N + shifts_H[:, None]) >> np.uint64(32)).min(axis=1)
        bands = [(band, row.tobytes()) for band, row in enumerate(least_H.reshape(_BANDS, _ROWS))]
        candidates = sorted({first for band in bands for first in buckets.get(band, ())})
        found = next((first for first in candidates if are_near(runs, shingles(texts[first]))), place)
        firsts.append(found)
        if found == place:
            for band in bands:
                buckets[band].append(place)
    return firsts
