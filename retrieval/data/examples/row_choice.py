"""How many rows packed texts need, found by packing a sample of them.

The sample is what one lane draws first, so every host and every resumed run finds the same.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from retrieval.data.examples.packing import PREDICTIONS, Arrays, Packing, Rows

WORTH = 0.95  # of the tokens of a text per row: packing that saves less is left out
_SPARE = 16  # one example in so many has room beside those of a batch

# Rows of each field to the places for masked tokens that they have; None where nothing is masked.
Places: TypeAlias = Callable[[Mapping[str, Rows]], Rows | None]


def choose(
    packing: Packing,
    lengths: Mapping[str, Sequence[int]],
    sample: Sequence[Arrays],
    places: Places = lambda texts: None,
) -> Packing | None:
    """The packing with the fewest tokens in which the sample never falls behind by more than a batch.

    It is packed in batches that are a little larger. Rows that just hold the sample would not hold what comes later:
    other lanes have other texts, and what falls behind slowly is not seen in a few batches.

    Args:
      packing: with one row for every text, as long as a text may be.
      lengths: field -> the lengths that its rows may have; those that are too short for a text are left out.
      sample: the examples of some batches, in the order in which they are drawn.
      places: the recipe's own.

    Returns:
      None where a text per row takes hardly more, `WORTH`.
    """
    keeps_up = functools.partial(_keeps_up, examples=packing.examples, sample=sample, places=places)
    texts = {}
    for field, plain in packing.texts.items():
        longs = [length for length in dict.fromkeys(lengths[field]) if length >= plain.length]
        choices = [_fewest(packing, field, length, keeps_up) for length in longs]
        texts[field] = min([*filter(None, choices), plain], key=_tokens)
    most = WORTH * sum(map(_tokens, packing.texts.values()))
    while sum(map(_tokens, texts.values())) <= most:
        packed = {field: rows for field, rows in texts.items() if rows != packing.texts[field]}
        if keeps_up(packed):
            return dataclasses.replace(packing, texts=texts, predictions=places(texts))
        # An example waits for room on either side. So both together may need a little more than each alone.
        texts = {field: _wider(rows, packing.texts[field]) for field, rows in texts.items()}
    return None


def _fewest(packing: Packing, field: str, length: int, keeps_up: Callable[[Mapping[str, Rows]], bool]) -> Rows | None:
    """The fewest rows of a length for one field; None where these take more than a text per row."""
    plain = packing.texts[field]
    texts_a_row, texts_of_an_example = length // plain.length, math.ceil(plain.count / packing.examples)
    # So many hold the longest texts of one example, which would wait for ever in fewer.
    least, most = math.ceil(texts_of_an_example / texts_a_row), _tokens(plain) // length

    def fits(count: int) -> bool:
        rows = dataclasses.replace(plain, count=count, length=length)
        return keeps_up({field: rows})

    if most < least or not fits(most):
        return None
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if fits(middle) else (middle + 1, most)
    return dataclasses.replace(plain, count=least, length=length)


def _wider(rows: Rows, plain: Rows) -> Rows:
    wider = dataclasses.replace(rows, count=rows.count + 1)
    return wider if _tokens(wider) <= _tokens(plain) else plain


def _keeps_up(texts: Mapping[str, Rows], examples: int, sample: Sequence[Arrays], places: Places) -> bool:
    """Whether no more than a batch ever waits, where batches have some more than `examples`."""
    larger = Packing(examples + math.ceil(examples / min(_SPARE, len(sample))), texts, places(texts))
    fields = [*texts, *(PREDICTIONS if larger.predictions else ())]
    waiting: Arrays = {}
    for drawn in sample:
        waiting = {field: np.concatenate([waiting.get(field, drawn[field][:0]), drawn[field]]) for field in fields}
        while packed := larger.pack(waiting):
            waiting = {field: np.delete(values, packed[1], axis=0) for field, values in waiting.items()}
        if any(len(values) > larger.examples for values in waiting.values()):
            return False
    return True


def _tokens(rows: Rows) -> int:
    return rows.count * rows.length
