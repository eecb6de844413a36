"""Texts of many lengths as batches of few shapes: each shape compiles a program, and a large model's takes seconds."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from retrieval.common.runtime.filler import FILLER

_Placed = list[tuple[int, Sequence[int]]]  # rows, and their places


def batches(
    tokens: Iterable[Sequence[int]], size: Callable[[int], int], longest: int
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Batches of rows of like length, each as soon as it is full, and in the end what is left over of every length.

    L is one of few lengths and B depends on L alone, so few shapes compile. What is left over of a length goes into the
    batch of a longer one that has room for all of it: a few texts are one batch, not one for each length.

    Args:
      size: from L to B.
      longest: no row has more tokens, and none is padded to more.

    Returns:
      The places of some rows, and their token ids [B, L]; those beyond them are padding.
    """
    waiting: dict[int, _Placed] = defaultdict(list)

    def batch(members: _Placed, length: int) -> tuple[list[int], np.ndarray]:
        places, rows = zip(*members)
        return list(places), padded(rows, size(length), length)

    for place, ids in enumerate(tokens):
        length = min(rounded(len(ids)), longest)
        waiting[length].append((place, ids))
        if len(waiting[length]) == size(length):
            yield batch(waiting.pop(length), length)
    for length, members in sorted(_joined(waiting, size).items()):
        yield batch(members, length)


def _joined(waiting: Mapping[int, _Placed], size: Callable[[int], int]) -> dict[int, _Placed]:
    """What is left over of each length, where that of a shorter one has gone into a longer one with room for it."""
    left: dict[int, _Placed] = {}
    for length in sorted(waiting, reverse=True):
        members = waiting[length]
        room = (longer for longer in sorted(left) if len(left[longer]) + len(members) <= size(longer))
        left.setdefault(next(room, length), []).extend(members)
    return left


def few(rows: int, multiple: int = 1) -> int:
    """Rows of a batch for so many, or more, a power of 2: few shapes compile."""
    return -(-(1 << (rows - 1).bit_length()) // multiple) * multiple


def padded(rows: Sequence[Sequence[int]], count: int, length: int) -> np.ndarray:
    """Token ids as an array [count, length], `FILLER` behind each row and behind the last."""
    ids = np.full((count, length), FILLER, np.int32)
    for row, tokens in zip(ids, rows):
        row[: len(tokens)] = tokens
    return ids


def lengths_up_to(longest: int) -> list[int]:
    """The lengths to which texts of up to so many tokens are padded."""
    return sorted({min(rounded(length), longest) for length in range(1, longest + 1)})


def rounded(length: int) -> int:
    """A length as a multiple of 16 up to 64, and of 32 beyond: at most ten shapes for documents of 256 tokens."""
    step = 16 if length <= 64 else 32
    return -(-max(length, 1) // step) * step
