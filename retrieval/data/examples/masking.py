"""Which tokens of a text are masked: some of them, or the tokens of some words."""

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


def choose(words: tf.Tensor, count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The tokens of random words, in the text's order: of one word after the other, if `count` still has room for it.

    Where all words are longer, so many tokens of one: a text without a masked one would teach nothing.

    Args:
      words: the number of each token's word.
    """
    sizes = tf.math.segment_sum(tf.ones_like(words), words)
    draws = tf.random.stateless_uniform([tf.size(words)], seed)
    order = tf.argsort(draws[: tf.size(sizes)], stable=True)
    taken = _fitting(tf.gather(sizes, order), count)
    taken = tf.where(tf.reduce_any(taken), taken, tf.range(tf.size(order)) == 0)
    taken = tf.gather(taken, tf.math.invert_permutation(order))
    return tf.cast(tf.where(tf.gather(taken, words))[:count, 0], tf.int32)


def _fitting(sizes: tf.Tensor, room: tf.Tensor) -> tf.Tensor:
    """Which of some words are taken, one after the other: each that there is still room for."""

    def fit(taken: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        left = room - tf.reduce_sum(tf.where(taken, sizes, 0))
        return tf.logical_not(taken) & (sizes <= left), left

    def take(taken: tf.Tensor) -> tuple[tf.Tensor]:
        # All up to the first that is too long for what those before it leave: few turns, and not one for every word.
        may_be, left = fit(taken)
        return (taken | may_be & (tf.cumsum(tf.where(may_be, sizes, 0)) <= left),)

    return tf.while_loop(lambda taken: tf.reduce_any(fit(taken)[0]), take, (tf.zeros_like(sizes, tf.bool),))[0]
