"""Rows of tokens, of the texts of a record: `[CLS] text [SEP]` and `[CLS] title [SEP] text [SEP]`.

What training sees of a text is what `Vocabulary.single` and `Vocabulary.pair` make of it when it is encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from retrieval.common.libraries import tf
from retrieval.data.tokenizers.prefixes import NONE, Prefixes
from retrieval.data.tokenizers.template import Template
from retrieval.data.tokenizers.vocab import Vocabulary

# The features of a record, or of an example, by name.
Record = Mapping[str, "tf.Tensor"]


class Specials(NamedTuple):
    """The ids of a vocabulary that the tasks need, and those of the prefixes of queries and documents."""

    template: Template
    mask: int
    pad: int
    vocab_size: int
    prefixes: Prefixes = NONE

    @classmethod
    def of(cls, vocabulary: Vocabulary, prefixes: Prefixes = NONE) -> Specials:
        """Reads them off a vocabulary."""
        return cls(vocabulary.template, vocabulary.mask_id, vocabulary.pad_id, len(vocabulary), prefixes)


def single(ids: tf.Tensor, length: int, specials: Specials) -> tf.Tensor:
    """`Template.single` in TensorFlow."""
    before, _, behind = _around(ids, specials)
    return tf.concat([before, ids[: max(0, length - specials.template.size())], behind], 0)


def pair(first: tf.Tensor, second: tf.Tensor, length: int, specials: Specials) -> tf.Tensor:
    """`Template.pair` in TensorFlow."""
    before, between, behind = _around(first, specials)
    room = max(0, length - specials.template.size(parted=True))
    half = (room + tf.cast(tf.size(first) > tf.size(second), tf.int32)) // 2
    first = first[: tf.maximum(half, room - tf.size(second))]
    rest = second[: room - tf.size(first)]
    row = tf.concat([before, first, between, rest, behind], 0)
    return tf.cond(tf.size(first) > 0, lambda: row, lambda: single(second, length, specials))


def _around(ids: tf.Tensor, specials: Specials) -> list[tf.Tensor]:
    """The parts of the template, of the type of some ids."""
    return [tf.constant(part, ids.dtype) for part in specials.template]


def query_row(ids: tf.Tensor, length: int, specials: Specials) -> tf.Tensor:
    """`Prefixes.query_row` in TensorFlow."""
    return single(tf.concat([tf.constant(specials.prefixes.query, ids.dtype), ids], 0), length, specials)


def document_row(title: tf.Tensor, text: tf.Tensor, length: int, specials: Specials) -> tf.Tensor:
    """The first of `Prefixes.document_rows` in TensorFlow."""
    prefix = specials.prefixes.document
    if specials.prefixes.joined:
        return single(tf.concat([tf.constant(prefix, text.dtype), title, text], 0), length, specials)
    if not prefix:
        return pair(title, text, length, specials)
    return tf.cond(
        tf.size(title) > 0,
        lambda: pair(tf.concat([prefix, title], 0), text, length, specials),
        lambda: single(tf.concat([prefix, text], 0), length, specials),
    )


def random_sentence(lengths: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Start and end, in tokens, of one of the sentences.

    Args:
      lengths: of all sentences of a text, in tokens.
    """
    index = tf.random.stateless_uniform([], seed, 0, tf.size(lengths), tf.int32)
    end = tf.cumsum(lengths)[index]
    return end - lengths[index], end
