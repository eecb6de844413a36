"""How many rows packed texts need, found by packing a sample of them.

The sample is what one lane draws first, so every host and every resumed run finds the same.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from retrieval.data.examples.packing import Arrays, Packing, Rows

WORTH = 0.95  # of the tokens of a text per row: packing that saves less is left out


def choose(packing: Packing, lengths: Mapping[str, Sequence[int]], sample: Sequence[Arrays]) -> Packing | None:
    """The packing with the fewest tokens in which the sample never falls behind by more than a batch.

    Args:
      packing: with one row for every text, as long as a text may be.
      lengths: field -> the lengths that its rows may have.
      sample: the examples of some batches, in the order in which they are drawn.

    Returns:
      None where a text per row takes hardly more, `WORTH`.
    """
    texts = {}
    for field, plain in packing.texts.items():
        choices = [_fewest(packing, field, length, sample) for length in dict.fromkeys(lengths[field])]
        texts[field] = min([*filter(None, choices), plain], key=_tokens)
    most = WORTH * sum(map(_tokens, packing.texts.values()))
    while sum(map(_tokens, texts.values())) <= most:
        chosen = dataclasses.replace(packing, texts=texts)
        if _keeps_up(chosen, sample):
            return chosen
        # An example waits for room on either side. So both together may need a little more than each alone.
        texts = {field: _wider(rows, packing.texts[field]) for field, rows in texts.items()}
    return None


def _fewest(packing: Packing, field: str, length: int, sample: Sequence[Arrays]) -> Rows | None:
    """The fewest rows of a length for one field; None where these take more than a text per row."""
    plain = packing.texts[field]
    least, most = 1, _tokens(plain) // length

    def fits(count: int) -> bool:
        rows = dataclasses.replace(plain, count=count, length=length)
        return _keeps_up(Packing(packing.examples, {field: rows}), sample)

    if most < 1 or not fits(most):
        return None
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if fits(middle) else (middle + 1, most)
    return dataclasses.replace(plain, count=least, length=length)


def _wider(rows: Rows, plain: Rows) -> Rows:
    wider = dataclasses.replace(rows, count=rows.count + 1)
    return wider if _tokens(wider) <= _tokens(plain) else plain


def _keeps_up(packing: Packing, sample: Sequence[Arrays]) -> bool:
    """Whether no more than a batch ever waits."""
    waiting: Arrays = {}
    for drawn in sample:
        waiting = {
            field: np.concatenate([waiting.get(field, drawn[field][:0]), drawn[field]]) for field in packing.rows
        }
        while packed := packing.pack(waiting):
            waiting = {field: np.delete(values, packed[1], axis=0) for field, values in waiting.items()}
        if any(len(values) > packing.examples for values in waiting.values()):
            return False
    return True


def _tokens(rows: Rows) -> int:
    return rows.count * rows.length
