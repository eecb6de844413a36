"""Texts to the vectors of their tokens, on the devices of a host.

Letters of shapes: Q queries, N documents, A tokens of a query, L tokens of a document, E size of a vector, T tokens.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval.data.tokenizers.prefixes import type_change
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.late_interaction.model import with_mask
from retrieval.methods.late_interaction.token_masks import IGNORED, SCORED, UNATTENDED, Rules
from retrieval.recipes.inference import Inference
from retrieval.search import encoding, text_batches

_QUERIES = 64  # of a batch
Rows = Sequence[Sequence[int]]
"""Texts as `towers.rows_of` gives them."""


class Queries(NamedTuple):
    """Attributes:
    vectors: float32 [Q, A, E].
    mask: whether a token is scored, bool [Q, A].
    """

    vectors: np.ndarray
    mask: np.ndarray

    @classmethod
    def empty(cls, count: int, length: int, size: int) -> "Queries":
        """So many queries without a token."""
        return cls(np.zeros((count, length, size), np.float32), np.zeros((count, length), bool))

    @classmethod
    def padded(cls, texts: Sequence[np.ndarray], count: int, length: int) -> "Queries":
        """Vectors [T, E] of each text as arrays of so many texts and tokens; those beyond are not scored."""
        made = cls.empty(count, length, max((each.shape[1] for each in texts), default=1))
        for number, vectors_TE in enumerate(texts):
            made.vectors[number, : len(vectors_TE)], made.mask[number, : len(vectors_TE)] = vectors_TE, True
        return made


class TokenEncoder:
    """A model of late interaction with any parameters of its sizes."""

    def __init__(self, config: ConfigDict, vocabulary: Vocabulary, model: nnx.Module, mesh: jax.sharding.Mesh):
        """Args are the config that the model was trained with, its vocabulary, and the model, which may be abstract."""
        self._config = config
        self._rules = Rules.of(config.model, vocabulary)
        self._devices, unattended = mesh.size, config.model.late.expansion == UNATTENDED
        inference = Inference(config, model, type_change(config.data, vocabulary.sep_id), mesh)
        self._queries = inference.compiled(lambda model, text, mask: model(with_mask(text, mask, unattended), None))
        self._documents = inference.compiled(lambda model, text: model(text, None))

    def queries(self, params: Any) -> Callable[[Rows], Queries]:
        """A function from the rows of queries to their vectors."""
        return functools.partial(self._encode_query, self._queries(params))

    def documents(self, params: Any) -> Callable[[Rows], list[np.ndarray]]:
        """A function from the rows of candidates to the vectors of the tokens that count, float32 [T, E] of each."""
        return functools.partial(self._encode_document, self._documents(params))

    def _encode_query(self, embed: Callable[..., np.ndarray], rows: Rows) -> Queries:
        length = self._config.data.query_length
        made = Queries.empty(len(rows), length, self._config.model.embed_dim)
        for start in range(0, len(rows), _QUERIES):
            part = rows[start : start + _QUERIES]
            size, places = text_batches.few(len(part), self._devices), slice(start, start + len(part))
            ids_BL, mask_BL = self._rules.of_queries(text_batches.padded(part, size, length))
            made.vectors[places] = encoding.finite(embed(ids_BL, mask_BL), len(part))
            made.mask[places] = (mask_BL != IGNORED)[: len(part)]
        return made

    def _encode_document(self, embed: Callable[..., np.ndarray], rows: Rows) -> list[np.ndarray]:
        vectors: list[np.ndarray] = [np.zeros((0, 0), np.float32)] * len(rows)

        def size(length: int) -> int:
            most = min(self._config.encode.batch_tokens // length, text_batches.few(len(rows)))
            return max(self._devices, most // self._devices * self._devices)

        for places, ids_BL in text_batches.batches(rows, size, self._config.data.document_length):
            mask_BL = self._rules.of_documents(ids_BL) == SCORED
            for place, vectors_LE, mask_L in zip(places, encoding.finite(embed(ids_BL), len(places)), mask_BL):
                vectors[place] = vectors_LE[mask_L]
        return vectors
