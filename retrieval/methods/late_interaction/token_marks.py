"""What each token of a row is to the score: it counts, it fills a query up and counts, or it does not count.

A query `[CLS] [Q] what is it [SEP]` of 10 tokens is filled up with [MASK] (query expansion); a document's padding and
its punctuation do not count:

    query      2 1 7 8 9 3 4 4 4 4      marks  1 1 1 1 1 1 2 2 2 2
    document   2 5 6 9 12 3 -1 -1       marks  1 1 1 1 0 1 0 0         12: a full stop
"""

from __future__ import annotations

import dataclasses
import string
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.libraries import tf
from retrieval.common.runtime.filler import FILLER
from retrieval.data.examples.example_kind import PAIRS, ExampleKind, Field, tokens
from retrieval.data.examples.token_rows import Record
from retrieval.data.tokenizers.vocab import Vocabulary

OTHER, COUNTED, FILLED = 0, 1, 2

# Ways of query expansion: none; [MASK] that no token sees, as the authors have it; [MASK] that all see.
NONE, UNSEEN, SEEN = "none", "unseen", "seen"
PUNCTUATION = "punctuation"

_DOCUMENTS = ("document_id", "document")
# Queries have a row each: what fills them up would fill packed rows up too.
LATE = dataclasses.replace(
    PAIRS,
    fields={**PAIRS.fields, "query": tokens()},
    made={**PAIRS.made, "query_marks": Field(shape=("query",)), "document_marks": Field(shape=_DOCUMENTS)},
    unread=("log_q",),
)


@dataclasses.dataclass(frozen=True)
class Rules:
    """How marks are made.

    Attributes:
      fill: the token that queries are filled up with; -1 for none.
      skip: tokens of documents that do not count.
    """

    fill: int
    skip: tuple[int, ...]

    @classmethod
    def of(cls, model: ConfigDict, vocabulary: Vocabulary) -> Rules:
        """Those of the group `model` of a config.

        Raises:
          UserError: queries are to be filled up, and the vocabulary has no token for it.
        """
        fill = fill_id(vocabulary) if model.late.expansion != NONE else -1
        if model.late.expansion != NONE and fill < 0:
            way = f"fills queries up with [MASK] or an end of text, and the vocabulary has neither: set it to {NONE}"
            raise UserError(f"config.model.late.expansion={model.late.expansion} {way}")
        skip = set(words(model.late.skip))
        return cls(fill, tuple(id for id, token in enumerate(vocabulary.tokens) if token in skip))

    def of_queries(self, ids_BL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Padded rows filled up, and their marks, both [B, L]."""
        blank_BL = ids_BL == FILLER
        if self.fill < 0:
            return ids_BL, np.where(blank_BL, OTHER, COUNTED).astype(np.int32)
        return np.where(blank_BL, self.fill, ids_BL), np.where(blank_BL, FILLED, COUNTED).astype(np.int32)

    def of_documents(self, ids_BL: np.ndarray) -> np.ndarray:
        """The marks of padded rows, [B, L]."""
        return np.where((ids_BL == FILLER) | np.isin(ids_BL, self.skip), OTHER, COUNTED).astype(np.int32)

    def kind(self) -> ExampleKind:
        """`LATE` with these rules."""
        return dataclasses.replace(LATE, make=self._make)

    def _make(self, row: Record, sep_id: int) -> dict[str, tf.Tensor]:
        """`of_queries` and `of_documents` in TensorFlow."""
        query, document, fills = row["query"], row["document"], self.fill >= 0
        blank = query == FILLER
        skipped: Any = tf.expand_dims(document, -1) == tf.constant([FILLER, *self.skip], document.dtype)
        return {
            **PAIRS.make(row, sep_id),
            "query": tf.where(blank, self.fill, query) if fills else query,
            "query_marks": tf.where(blank, FILLED if fills else OTHER, COUNTED),
            "document_marks": tf.where(tf.reduce_any(skipped, axis=-1), OTHER, COUNTED),
        }


def fill_id(vocabulary: Vocabulary) -> int:
    """The token that queries are filled up with: [MASK], or the one that ends a text; -1 where there is neither."""
    return next((id for id in (vocabulary.mask_id, vocabulary.eos_id) if id >= 0), -1)


def words(skip: tuple[str, ...]) -> list[str]:
    """The words of `model.late.skip`, punctuation sign by sign."""
    return [sign for word in skip for sign in (string.punctuation if word == PUNCTUATION else [word])]
