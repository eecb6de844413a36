"""What an example is, one declaration a kind: its fields, their dtypes and lengths, which side a text is on.

Parsing, converters, packing, placing and abstract batches follow from it. A pair (query 8, document 8 long, [CLS] = 2,
[SEP] = 3) that a task gives as

    query [2 7 8 3]   document [[2 5 3 9 6 3]]   document_id [41]   log_q [-9.2]

is in a batch

    query [2 7 8 3 -1 -1 -1 -1]       query_types [0 0 0 0 0 0 0 0]
    document [[2 5 3 9 6 3 -1 -1]]    document_types [[0 0 0 1 1 1 0 0]]
    document_id [41]                  log_q [-9.2]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrieval.common.libraries import tf
from retrieval.common.runtime.filler import FILLER
from retrieval.data.examples.token_rows import Record

Lengths = Mapping[str, int]  # field -> its length; an optional field that is not in it is not in the examples

GUIDE = "guide_rows"  # the field with the rows of texts in a table of a guide's embeddings


class Field(NamedTuple):
    """A field of an example, or of a row.

    Attributes:
      dtype: of its values.
      shape: each axis as a number, or as the field whose length it is; () for one axis of its own length.
      side: 'query' or 'document' where a row has texts there that may be packed: they have its settings.
      is_optional: whether examples have it only where somebody asks for it.
      fill: what stands behind its values.
    """

    dtype: str = "int32"
    shape: tuple[str | int, ...] = ()
    side: str = ""
    is_optional: bool = False
    fill: int = 0


def tokens(shape: tuple[str | int, ...] = (), side: str = "", is_optional: bool = False) -> Field:
    """A field of token ids."""
    return Field(shape=shape, side=side, is_optional=is_optional, fill=FILLER)


@dataclasses.dataclass(frozen=True)
class ExampleKind:
    """A kind of examples. A recipe trains on one.

    A row of a batch has the fields of an example, filled up, and those that are made of them.

    Attributes:
      name, what: the kind in a word, and in words for errors. Tasks and recipes go together by the word.
      fields: of an example.
      made: of a row, beside those.
      make: gives these of a row that is filled up, and the id of [SEP].
      unread: fields of an example that a row lacks.
      needs: roles of tokens that a vocabulary must have for it, such as 'mask'.
    """

    name: str
    what: str
    fields: Mapping[str, Field]
    made: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    make: Callable[[Record, int], Record] = lambda row, sep_id: {}
    unread: Sequence[str] = ()
    needs: Sequence[str] = ()

    @property
    def sides(self) -> dict[str, str]:
        """The fields of a row whose texts may be packed -> 'query' or 'document'."""
        return {name: field.side for name, field in self._of_rows().items() if field.side}

    def row_specs(self, lengths: Lengths) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and the dtype of each field of a row."""
        return {name: (self._shape(name, lengths), field.dtype) for name, field in self._of_rows(lengths).items()}

    def row(self, example: Record, lengths: Lengths, sep_id: int) -> Record:
        """A row of an example."""
        there = {name: field for name, field in self.fields.items() if name in lengths}
        row = {name: _filled(example[name], self._shape(name, lengths), field.fill) for name, field in there.items()}
        row |= self.make(row, sep_id)
        return {name: tf.ensure_shape(row[name], self._shape(name, lengths)) for name in self._of_rows(lengths)}

    def blank_rows(self, lengths: Lengths, count: int) -> dict[str, np.ndarray]:
        """Rows without a token."""
        fields, specs = self._of_rows(lengths), self.row_specs(lengths)
        return {name: np.full((count, *shape), fields[name].fill, dtype) for name, (shape, dtype) in specs.items()}

    def _of_rows(self, lengths: Lengths | None = None) -> dict[str, Field]:
        own = {name: field for name, field in self.fields.items() if name not in self.unread}
        return {name: field for name, field in own.items() if lengths is None or name in lengths} | {**self.made}

    def _shape(self, name: str, lengths: Lengths) -> tuple[int, ...]:
        axes = (self.made.get(name) or self.fields[name]).shape or (name,)
        return tuple(axis if isinstance(axis, int) else lengths[axis] for axis in axes)


def _filled(values: tf.Tensor, shape: tuple[int, ...], fill: int) -> tf.Tensor:
    """Values whose last axis is cut or filled up."""
    if values.shape.is_fully_defined() and tuple(values.shape) == shape:
        return values
    values = values[..., : shape[-1]]  # pyright: ignore[reportArgumentType] (an ellipsis is allowed)
    blanks: Any = [[0, 0]] * (len(shape) - 1) + [[0, shape[-1] - tf.shape(values)[-1]]]
    return tf.ensure_shape(tf.pad(values, blanks, constant_values=fill), shape)


def types(ids: tf.Tensor, sep_id: int, place: int = 1) -> tf.Tensor:
    """BERT's token types: 1 for the tokens after the first [SEP] (or its `place`), 0 for those before and padding."""
    before = tf.cumsum(tf.cast(ids == sep_id, tf.int32), axis=-1, exclusive=True)
    return tf.where(ids == FILLER, 0, tf.cast(before >= place, tf.int32))


# The leading axis of a document, of size 1 + hard negatives, is the shape that every loss takes.
_DOCUMENTS = ("document_id", "document")
PAIRS = ExampleKind(
    "pair",
    "pairs of a query and a document",
    {
        "query": tokens(side="query"),
        "document": tokens(_DOCUMENTS, side="document"),
        "document_id": Field(),
        "log_q": Field("float32"),
        "positive_ids": Field(is_optional=True),  # of the query's known positives
        "teacher": Field("float32", is_optional=True),  # its scores
        "source": Field(is_optional=True),  # its number, of several
        GUIDE: Field(is_optional=True),  # of the query and the documents, in a table of embeddings
    },
    {"query_types": Field(shape=("query",)), "document_types": Field(shape=_DOCUMENTS)},
    lambda row, sep_id: {"query_types": tf.zeros_like(row["query"]), "document_types": types(row["document"], sep_id)},
)


def pair_lengths(
    query: int, document: int, negatives: int = 0, positives: int = 0, teacher: bool = False, guide: bool = False
) -> dict[str, int]:
    """The lengths of a pair's fields; a query has a positive and so many hard negatives.

    Args:
      positives: ids of known positives that an example has room for; 0: it has none of them.
      teacher: whether an example has a teacher's scores.
      guide: whether it has the rows of its texts in a table of a guide's embeddings.
    """
    lengths = {"query": query, "document": document, "document_id": 1 + negatives, "log_q": 1 + negatives}
    optional = {"positive_ids": positives, "teacher": teacher * (1 + negatives), GUIDE: guide * (2 + negatives)}
    return lengths | {name: size for name, size in optional.items() if size}


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
