"""Texts to sparse vectors over the vocabulary, on the devices of a host."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from ml_collections import ConfigDict

from retrieval.common.runtime.filler import FILLER
from retrieval.common.runtime.model_folder import DOCUMENT, QUERY
from retrieval.data.tokenizers.prefixes import type_change
from retrieval.methods.splade import folder as splade_folder
from retrieval.methods.splade.model import BY_IDF, Splade
from retrieval.models.text import Text
from retrieval.recipes.encoder_sizes import longest_text
from retrieval.recipes.inference import Inference
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.runs.weights.trained_model import TextEncoder, Trained
from retrieval.search import encoding
from retrieval.search.fusion import Run as Lists
from retrieval.search.sparse import SparseIndex

_TERMS = 512  # that a vector keeps at most


class TermEncoder(TextEncoder):
    """A trained model of sparse vectors. A vector keeps its greatest weights."""

    similarity = "dot"

    def __init__(self, run: ConfigDict, trained: Trained):
        """Args are the run's config and the model."""
        super().__init__(run, trained)
        self.config.model.dtype = run.model.dtype
        mesh = local_mesh(self.config)
        inference = Inference(self.config, self.model, type_change(self.config.data, self.vocabulary.sep_id), mesh)
        params, self._devices = parameters_of(self.model), mesh.size

        towers = {QUERY: _query_terms, DOCUMENT: _document_terms}
        self._towers = {side: inference.compiled(terms)(params) for side, terms in towers.items()}

    def embed(self, side: str, rows: Sequence[Sequence[int]], /) -> scipy.sparse.csr_array:
        """The weights of all tokens of the vocabulary, [N, V]."""
        if side == QUERY and self.model.queries == BY_IDF:  # tokens around a query weigh nothing, and keep their places
            before, behind = (len(self.vocabulary.template[part]) for part in (0, 2))
            rows = [[FILLER] * before + list(row[before : len(row) - behind]) + [FILLER] * behind for row in rows]
        batch_tokens, longest = self.config.encode.batch_tokens, longest_text(self.config)
        values = encoding.encode_any(rows, self._towers[side], batch_tokens, longest, self._devices)
        return as_matrix(values, len(self.vocabulary))

    def over(self, documents: Any, /) -> Callable[[scipy.sparse.csr_array, int], Lists]:
        """Exact search by inner products."""
        return SparseIndex(documents.T.tocsr()).search

    def write(self, folder: Path) -> None:
        """Writes the model and its tokenizer into a folder that is there, for sentence-transformers."""
        splade_folder.write(folder, self.model, self.config.data, self.vocabulary)


def _query_terms(model: Splade, text: Text) -> jax.Array:
    return greatest(model.encode_query(text), min(_TERMS, model.terms or _TERMS), model.normalize)


def _document_terms(model: Splade, text: Text) -> jax.Array:
    return greatest(model.encode_document(text), min(_TERMS, model.terms or _TERMS), model.normalize)


def greatest(weight_BV: jax.Array, terms: int, normalize: bool = False) -> jax.Array:
    """The greatest weights of each vector, and behind them their tokens, float32 [B, 2 K]: few values leave a device.

    Where they are normalised their squares sum to 1, unless all are 0. Whole numbers up to 2^24 are exact in float32,
    and no vocabulary has more tokens.
    """
    weight_BK, token_BK = jax.lax.top_k(weight_BV, min(terms, weight_BV.shape[1]))
    if normalize:
        weight_BK *= jax.lax.rsqrt(jnp.square(weight_BK).sum(axis=1, keepdims=True) + 1e-24)
    return jnp.concatenate([weight_BK, token_BK.astype(jnp.float32)], axis=1)


def as_matrix(greatest_N2K: np.ndarray, vocab_size: int) -> scipy.sparse.csr_array:
    """Vectors [N, V] of what `greatest` gave, without the weights that are 0."""
    weight_NK, token_NK = np.split(greatest_N2K, 2, axis=1)
    kept_NK = weight_NK > 0
    ends = np.cumsum([0, *kept_NK.sum(axis=1)])
    arrays = weight_NK[kept_NK].astype(np.float32), token_NK[kept_NK].astype(np.int32), ends
    matrix: Any = scipy.sparse.csr_array(arrays, shape=(len(weight_NK), vocab_size))
    matrix.sort_indices()
    return matrix
