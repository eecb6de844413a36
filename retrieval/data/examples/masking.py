"""Masked texts: which tokens are masked, and what an example of them has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrieval.data.examples.example_kind import ExampleKind, Field, tokens
from retrieval.libraries import tf

# Of a text's tokens, those that a masked language model predicts, in percent (Devlin et al. 2019).
PERCENT = 15

MASKED = ExampleKind(
    "masked",
    "masked texts",
    {"text": tokens(side="document"), "positions": Field(), "labels": Field()},
    {"weights": Field("float32", ("positions",))},
    # 1 for a position to predict, and 0 for padding. The first token, [CLS], is never predicted.
    lambda row, sep_id: {"weights": tf.cast(row["positions"] > 0, tf.float32)},
    needs=("cls", "sep", "mask"),
)


def masked_lengths(text: int) -> dict[str, int]:
    """The lengths of the fields: as many positions as a full row has masked tokens."""
    masked = max(1, share(text - 2, PERCENT))
    return {"text": text, "positions": masked, "labels": masked}


def share(count: Any, percent: int) -> Any:
    """So many percent of a count, an integer or a tensor of integers: rounded, and halves to the even number.

    In integers, for a row has as many places as this says of its length, and 28.5 may be more or less in float32.
    """
    hundredths = count * percent
    return (hundredths + 49 + hundredths // 100 % 2) // 100


def words(ids: tf.Tensor, continues: Sequence[bool]) -> tf.Tensor:
    """The number of each token's word: 0, 1, ...

    Args:
      continues: for each id of the vocabulary, whether it goes on with the word of the token before it.
    """
    begins = tf.logical_not(tf.gather(tf.constant(continues), ids))
    return tf.maximum(0, tf.cumsum(tf.cast(begins, tf.int32)) - 1)


def choose(size: Any, count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """So many random places below `size`, in order."""
    draws = tf.random.stateless_uniform([size], seed)
    return tf.sort(tf.argsort(draws, stable=True)[:count])
