"""Sparse vectors on the host: the greatest weights of texts, and the weights of queries without an encoder."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from retrieval.data.examples.stored_pairs import StoredPairs
from retrieval.runs.pipeline.run import Run


def greatest(weight_BV: jax.Array, terms: int, normalize: bool = False) -> jax.Array:
    """The greatest weights of each vector, and behind them their tokens, float32 [B, 2 K]: few values leave a device.

    Where they are normalised their squares sum to 1, unless all are 0.

    Whole numbers up to 2^24 are exact in float32, and no vocabulary has more tokens.
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


def inverse_document_frequencies(run: Run, vocab_size: int) -> np.ndarray:
    """ln(1 + (N - n + 0.5) / (n + 0.5)) of each token, float32 [V], by the positives of the labelled pairs.

    A token that none of them has gets the highest value, and one that stands around texts gets 0.
    """
    pairs = StoredPairs(run.pairs)
    numbers, ids = pairs.document_ids(negatives=False)
    _, first = np.unique(ids, return_index=True)
    count_V = np.zeros(vocab_size, np.int64)
    for document in pairs.positives(np.sort(numbers[first])):
        count_V[np.unique([*document.title, *document.text])] += 1
    idf_V = np.log(1 + (len(first) - count_V + 0.5) / (count_V + 0.5)).astype(np.float32)
    template = run.load_vocabulary().template
    idf_V[[*template.before, *template.between, *template.behind]] = 0
    return idf_V
