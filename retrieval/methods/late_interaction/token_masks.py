"""Masks of tokens: MaxSim scores a token, scores it as one of query expansion, or ignores it.

A query `[CLS] [Q] what is it [SEP]` of 10 tokens is filled up with [MASK] (query expansion); a document's padding and
its punctuation are ignored:

    query      2 1 7 8 9 3 4 4 4 4      mask  1 1 1 1 1 1 2 2 2 2
    document   2 5 6 9 12 3 -1 -1       mask  1 1 1 1 0 1 0 0         12: a full stop
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

IGNORED, SCORED, EXPANSION = 0, 1, 2

# Ways of query expansion: none; [MASK] that no token attends to, as the authors have it; [MASK] that all attend to.
NONE, UNATTENDED, ATTENDED = "none", "unseen", "seen"
PUNCTUATION = "punctuation"

_DOCUMENTS = ("document_id", "document")
# Queries have a row each: what fills them up would fill packed rows up too.
LATE = dataclasses.replace(
    PAIRS,
    fields={**PAIRS.fields, "query": tokens()},
    made={**PAIRS.made, "query_mask": Field(shape=("query",)), "document_mask": Field(shape=_DOCUMENTS)},
    unread=("log_q",),
)


@dataclasses.dataclass(frozen=True)
class Rules:
    """How the masks are made.

    Attributes:
      fill: the token that queries are filled up with; -1 for none.
      skip: tokens of documents that are ignored.
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
        """Padded rows filled up, and their mask, both [B, L]."""
        blank_BL = ids_BL == FILLER
        if self.fill < 0:
            return ids_BL, np.where(blank_BL, IGNORED, SCORED).astype(np.int32)
        return np.where(blank_BL, self.fill, ids_BL), np.where(blank_BL, EXPANSION, SCORED).astype(np.int32)

    def of_documents(self, ids_BL: np.ndarray) -> np.ndarray:
        """The mask of padded rows, [B, L]."""
        return np.where((ids_BL == FILLER) | np.isin(ids_BL, self.skip), IGNORED, SCORED).astype(np.int32)

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
            "query_mask": tf.where(blank, EXPANSION if fills else IGNORED, SCORED),
            "document_mask": tf.where(tf.reduce_any(skipped, axis=-1), IGNORED, SCORED),
        }


def fill_id(vocabulary: Vocabulary) -> int:
    """The token that queries are filled up with: [MASK], or the one that ends a text; -1 where there is neither."""
    return next((id for id in (vocabulary.mask_id, vocabulary.eos_id) if id >= 0), -1)


def words(skip: tuple[str, ...]) -> list[str]:
    """The words of `model.late.skip`, punctuation sign by sign."""
    return [sign for word in skip for sign in (string.punctuation if word == PUNCTUATION else [word])]
