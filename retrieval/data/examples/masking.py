"""Which tokens of a text are masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrieval.libraries import tf

# Of a text's tokens, those that a masked language model predicts, in percent (Devlin et al. 2019).
PERCENT = 15


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
