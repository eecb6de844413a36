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
from jax.sharding import PartitionSpec as P

from retrieval.runtime.arrays import first_highest, on_every_device

_PRODUCTS = 2**24  # of a block: 64 MiB of them, three times in the backward pass


def maxsim(
    query_BAE: jax.Array, counts_BA: jax.Array, document_NLE: jax.Array, counts_NL: jax.Array, block: int = 0
) -> jax.Array:
    """The score of every query with every document, float32 [B, N].

    On a mesh the queries stay where they are, and every device gets all documents.

    Args:
      counts_BA, counts_NL: whether a token counts, bool.
      block: documents that are compared at a time, which changes memory and time alone; 0: as many as 64 MiB hold.

    Returns:
      The scores: 0 of a query without a token, -inf of a document without one. Where two tokens of a document are
      equally near, the first has the gradient.
    """
    B, A, _ = query_BAE.shape
    document_NLE, counts_NL = on_every_device((document_NLE, counts_NL))
    devices = max(1, jax.typeof(query_BAE).sharding.mesh.size)
    block = block or max(1, _PRODUCTS // max(1, B * A * document_NLE.shape[1] // devices))
    score: Any = _maxsim(query_BAE.astype(jnp.float32), counts_BA, document_NLE.astype(jnp.float32), counts_NL, block)
    return jnp.where(counts_NL.any(axis=1), score, -jnp.inf)


def own_scores(
    query_BAE: jax.Array, counts_BA: jax.Array, document_BKLE: jax.Array, counts_BKL: jax.Array
) -> jax.Array:
    """The score of every query with its own documents, float32 [B, K]; else as `maxsim`."""

    def of_example(query_AE: jax.Array, counts_A: jax.Array, *documents: jax.Array) -> jax.Array:
        vectors_KLE, counts_KL = documents
        score: Any = _maxsim(query_AE[None], counts_A[None], vectors_KLE, counts_KL, len(vectors_KLE))
        return score[0]

    given = query_BAE.astype(jnp.float32), counts_BA, document_BKLE.astype(jnp.float32), counts_BKL
    return jnp.where(counts_BKL.any(axis=2), jax.vmap(of_example)(*given), -jnp.inf)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _maxsim(
    query_BAE: jax.Array, counts_BA: jax.Array, document_NLE: jax.Array, counts_NL: jax.Array, block: int
) -> jax.Array:
    """As `maxsim`, with a finite number for a document without a token."""
    return _forward(query_BAE, counts_BA, document_NLE, counts_NL, block)[0]


def _forward(
    query_BAE: jax.Array, counts_BA: jax.Array, document_NLE: jax.Array, counts_NL: jax.Array, block: int
) -> tuple[jax.Array, tuple]:
    def add(_: None, given: tuple) -> tuple[None, jax.Array]:
        best_BAJ = _products(query_BAE, *given).max(axis=3)
        return None, jnp.where(counts_BA[:, :, None], best_BAJ, 0).sum(axis=1)

    _, score_TBJ = jax.lax.scan(add, None, _blocks(document_NLE, counts_NL, block))
    B, N = len(query_BAE), len(document_NLE)
    score_BN = jnp.moveaxis(score_TBJ, 0, 1).reshape(B, -1)[:, :N]
    return score_BN, (query_BAE, counts_BA, document_NLE, counts_NL)


def _backward(block: int, given: tuple, gradient_BN: jax.Array) -> tuple:
    query_BAE, counts_BA, document_NLE, counts_NL = given
    blocks = _blocks(document_NLE, counts_NL, block)
    N, J = len(document_NLE), blocks[0].shape[1]
    padded_BN = jnp.pad(gradient_BN, ((0, 0), (0, -N % J)))
    gradient_TBJ = jnp.moveaxis(padded_BN.reshape(len(padded_BN), -1, J), 1, 0)

    def add(of_query_BAE: jax.Array, given: tuple) -> tuple[jax.Array, jax.Array]:
        document_JLE, counts_JL, gradient_BJ = given
        product_BAJL = _products(query_BAE, document_JLE, counts_JL)
        is_best_BAJL = first_highest(product_BAJL)[..., None] == jnp.arange(product_BAJL.shape[3])
        weight_BAJ = jnp.where(counts_BA[:, :, None], gradient_BJ[:, None], 0)
        weight_BAJL = jnp.where(is_best_BAJL, weight_BAJ[..., None], 0)
        of_document_JLE = _product("bajl,bae->jle", weight_BAJL, query_BAE, _everywhere())
        return of_query_BAE + _product("bajl,jle->bae", weight_BAJL, document_JLE), of_document_JLE

    of_query_BAE, of_document_TJLE = jax.lax.scan(add, jnp.zeros_like(query_BAE), (*blocks, gradient_TBJ))
    of_document_NLE = of_document_TJLE.reshape(-1, *document_NLE.shape[1:])[:N]
    return of_query_BAE, None, of_document_NLE, None


_maxsim.defvjp(_forward, _backward)


def _blocks(document_NLE: jax.Array, counts_NL: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """The documents in blocks [T, J, ...]; the last may end with some without a token."""
    N = len(document_NLE)
    J = max(1, min(block, N))

    def cut(x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, -N % J)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, J, *x.shape[1:])

    return cut(document_NLE), cut(counts_NL)


def _products(query_BAE: jax.Array, document_JLE: jax.Array, counts_JL: jax.Array) -> jax.Array:
    """The inner products [B, A, J, L]; of a document's token that does not count, less than any other."""
    product_BAJL = _product("bae,jle->bajl", query_BAE, document_JLE)
    return jnp.where(counts_JL, product_BAJL, -1e30)


def _product(equation: str, a: jax.Array, b: jax.Array, out_sharding: P | None = None) -> jax.Array:
    # The default precision on an accelerator would round the vectors to bfloat16 or TF32.
    return jnp.einsum(equation, a, b, precision=jax.lax.Precision.HIGHEST, out_sharding=out_sharding)


def _everywhere() -> P | None:
    """The sharding of a sum over all devices' queries."""
    return None if jax.sharding.get_abstract_mesh().empty else P()
