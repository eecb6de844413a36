"""MaxSim (Khattab & Zaharia 2020): the sum over a query's tokens of the best inner product with a document's.

The products of all tokens of all queries with all of all documents are many times as many as the scores. They are made
for a block of documents at a time, and once more in the backward pass, which keeps nothing of them.

Letters of shapes: B queries, N documents, A tokens of a query, L tokens of a document, E size of a vector; T blocks, J
documents of a block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from retrieval.common.runtime.arrays import first_highest, on_every_device
from retrieval.training.candidate_blocks import product, summed

_PRODUCTS = 2**24  # of a block: 64 MiB of them, three times in the backward pass
_NONE = -1e30  # less than any product


def maxsim(
    query_BAE: jax.Array, mask_BA: jax.Array, document_NLE: jax.Array, mask_NL: jax.Array, block: int = 0
) -> jax.Array:
    """The score of every query with every document, float32 [B, N].

    On a mesh the queries stay where they are, and every device gets all documents.

    Args:
      mask_BA, mask_NL: whether a token is scored, bool.
      block: documents that are compared at a time, which changes memory and time alone; 0: as many as 64 MiB hold.

    Returns:
      The scores: 0 of a query without a token, -inf of a document without one. Where two tokens of a document are
      equally near, the first has the gradient.
    """
    B, A, _ = query_BAE.shape
    document_NLE, mask_NL = on_every_device((document_NLE, mask_NL))
    devices = max(1, jax.typeof(query_BAE).sharding.mesh.size)
    block = block or max(1, _PRODUCTS // max(1, B * A * document_NLE.shape[1] // devices))
    queries = query_BAE.astype(jnp.float32), mask_BA
    documents = document_NLE.astype(jnp.float32), mask_NL
    score: Any = _maxsim(queries, documents, block)
    return jnp.where(mask_NL.any(axis=1), score, -jnp.inf)


def own_scores(query_BAE: jax.Array, mask_BA: jax.Array, document_BKLE: jax.Array, mask_BKL: jax.Array) -> jax.Array:
    """The score of every query with its own documents, float32 [B, K]; else as `maxsim`."""

    def of_example(query_AE: jax.Array, mask_A: jax.Array, *documents: jax.Array) -> jax.Array:
        score: Any = _maxsim((query_AE[None], mask_A[None]), documents, len(documents[0]))
        return score[0]

    scores = jax.vmap(of_example)
    score_BK = scores(query_BAE.astype(jnp.float32), mask_BA, document_BKLE.astype(jnp.float32), mask_BKL)
    return jnp.where(mask_BKL.any(axis=2), score_BK, -jnp.inf)


# Vectors [..., E] and their mask.
_Tokens = tuple[jax.Array, jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _maxsim(queries: _Tokens, documents: Any, block: int) -> jax.Array:
    """As `maxsim`, with a finite number for a document without a token."""
    return _forward(queries, documents, block)[0]


def _forward(queries: _Tokens, documents: _Tokens, block: int) -> tuple[jax.Array, tuple]:
    query_BAE, mask_BA = queries

    def scores(tokens: _Tokens) -> jax.Array:
        best_BAJ = _products(query_BAE, *tokens).max(axis=3)
        return (_weights(best_BAJ, mask_BA) * best_BAJ).sum(axis=1)

    score_TBJ = jax.lax.map(scores, _blocks(documents, block))
    score_BN = jnp.moveaxis(score_TBJ, 0, 1).reshape(len(query_BAE), -1)[:, : len(documents[0])]
    return score_BN, (queries, documents)


def _backward(block: int, residuals: tuple, gradient_BN: jax.Array) -> tuple:
    (query_BAE, mask_BA), (document_NLE, mask_NL) = residuals
    blocks = _blocks((document_NLE, mask_NL), block)
    N, J = len(document_NLE), blocks[0].shape[1]
    padded_BN = jnp.pad(gradient_BN, ((0, 0), (0, -N % J)))
    gradient_TBJ = jnp.moveaxis(padded_BN.reshape(len(padded_BN), -1, J), 1, 0)

    def add(of_query_BAE: jax.Array, of_block: tuple) -> tuple[jax.Array, jax.Array]:
        document_JLE, mask_JL, gradient_BJ = of_block
        product_BAJL = _products(query_BAE, document_JLE, mask_JL)
        is_best_BAJL = first_highest(product_BAJL)[..., None] == jnp.arange(product_BAJL.shape[3])
        weight_BAJ = _weights(product_BAJL.max(axis=3), mask_BA) * gradient_BJ[:, None]
        weight_BAJL = jnp.where(is_best_BAJL, weight_BAJ[..., None], 0)
        of_document_JLE = product("bajl,bae->jle", weight_BAJL, query_BAE, summed())
        return of_query_BAE + product("bajl,jle->bae", weight_BAJL, document_JLE), of_document_JLE

    of_query_BAE, of_document_TJLE = jax.lax.scan(add, jnp.zeros_like(query_BAE), (*blocks, gradient_TBJ))
    of_document_NLE = of_document_TJLE.reshape(-1, *document_NLE.shape[1:])[:N]
    return (of_query_BAE, None), (of_document_NLE, None)


_maxsim.defvjp(_forward, _backward)


def _weights(best_BAJ: jax.Array, mask_BA: jax.Array) -> jax.Array:
    """Whether a score has each query token's best product, [B, A, J]."""
    return (mask_BA[:, :, None] & (best_BAJ > _NONE)).astype(jnp.float32)


def _blocks(documents: _Tokens, block: int) -> _Tokens:
    """The documents in blocks [T, J, ...]; the last may end with some without a token."""
    N = len(documents[0])
    J = max(1, min(block, N))

    def cut(x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, -N % J)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, J, *x.shape[1:])

    return jax.tree.map(cut, documents)


def _products(query_BAE: jax.Array, document_JLE: jax.Array, mask_JL: jax.Array) -> jax.Array:
    """The inner products [B, A, J, L]; of a document's token that does not count, less than any other."""
    return jnp.where(mask_JL, product("bae,jle->bajl", query_BAE, document_JLE), _NONE)
