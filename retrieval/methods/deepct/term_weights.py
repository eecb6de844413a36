"""DeepCT (Dai & Callan 2019): how much the words of a passage say about it, as term frequencies.

A word is one or more word pieces of BERT: its first piece carries its weight, and pieces with ## go on.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS

_GOES_ON = "##"

# From words that stand one after the other, with their weights, to those that an index has.
Indexed = Callable[[Iterable[tuple[str, float]]], Iterable[tuple[str, float]]]


def term_frequencies(
    pieces: Sequence[str],
    weights: Sequence[float],
    *,
    scale: int = 100,
    square_root: bool = False,
    indexed: Indexed = iter,
) -> dict[str, int]:
    """What a model said of a passage as term frequencies of an index: round(scale * weight) of each word (equation 4).

    A word that comes again has its greatest weight. Words that round to 0 or less are left out. The authors' program
    rounds nothing up to 1; their paper does.

    Args:
      weights: of each piece; of those with ## they are not looked at.
      square_root: whether the root of a weight counts, so that more words stay (the authors' second index).
      indexed: gets the words between two special tokens, each with its weight.
    """
    if len(pieces) != len(weights):
        raise ValueError(f"{len(pieces)} pieces, {len(weights)} weights")
    frequencies: dict[str, int] = {}
    parts = list(itertools.accumulate(piece in SPECIAL_TOKENS for piece in pieces))
    for _, part in itertools.groupby(words(pieces), lambda found: parts[found[0]]):
        for word, weight in indexed((word, max(weights[place], 0.0)) for place, word in part):
            frequency = round(scale * (math.sqrt(weight) if square_root else weight))
            if frequency > frequencies.get(word, 0):
                frequencies[word] = frequency
    return frequencies


def words(pieces: Sequence[str]) -> list[tuple[int, str]]:
    """The words that pieces make, each after the place of its first piece; special tokens are none.

    A word cut off at the end of a passage is what is left of it. One that the vocabulary has no pieces for is left out.
    """
    found: list[tuple[int, str]] = []
    in_word = False
    for place, piece in enumerate(pieces):
        goes_on = piece.startswith(_GOES_ON)
        if goes_on and in_word:
            found[-1] = (found[-1][0], found[-1][1] + piece.removeprefix(_GOES_ON))
        elif not goes_on:
            in_word = piece not in SPECIAL_TOKENS
            if in_word:
                found.append((place, piece))
    return found
