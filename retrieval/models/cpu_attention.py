"""Attention on a CPU, with the features of a head last: XLA's products are faster so.

In float32 that takes 0.8 times as long as `attention.plain`, and JAX makes the gradient. With factors in bfloat16, on a
CPU with AMX, it takes 0.7 times as long. There a product has one axis for rows and heads, and sums over the last axis
of its first factor. Otherwise XLA would multiply in float32.

Letters of shapes beside those of `text`: N heads, D head size, M the tokens attended to, P pairs of a row and a head.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from retrieval.common.runtime.arrays import reshape_rows
from retrieval.models.attention import Heads, made_once, powers
from retrieval.models.dropout import left, row_keys
from retrieval.models.products import rounded


def attend(heads: Heads, mask_R1LM: jax.Array, rate: float, dropout_key: jax.Array | None, factor: str) -> jax.Array:
    """What each token sees, float32 [R, N, D, L]: as `attention.attend`.

    Args:
      factor: the type that the factors of products are rounded to.
    """
    rows_R = None if dropout_key is None or rate == 0 else row_keys(heads[0], dropout_key)
    kept = 1.0 if rows_R is None else 1 - rate
    query_RNLD, key_RNMD, value_RNMD = (jnp.swapaxes(x, 2, 3) for x in heads)
    inputs = (query_RNLD / query_RNLD.shape[3] ** 0.5, key_RNMD, value_RNMD), mask_R1LM, rows_R, kept
    seen_RNLD: Any = _exact(*inputs) if factor == "float32" else _rounded(*inputs, factor)
    return seen_RNLD.swapaxes(2, 3)


def _exact(heads: Heads, mask_R1LM: jax.Array, rows_R: jax.Array | None, kept: float) -> jax.Array:
    query_RNLD, key_RNMD, value_RNMD = heads
    power_RNLM = powers(jnp.einsum("rnld,rnmd->rnlm", query_RNLD, key_RNMD), mask_R1LM)
    sum_RNLD = jnp.einsum("rnlm,rnmd->rnld", left(power_RNLM, rows_R, 1 - kept), value_RNMD)
    return sum_RNLD / (power_RNLM.sum(axis=-1, keepdims=True) * kept)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _rounded(heads: Heads, mask_R1LM: jax.Array, rows_R: jax.Array | None, kept: float, factor: str) -> jax.Array:
    return _forward(heads, mask_R1LM, rows_R, kept, factor)[0]


def _forward(
    heads: Heads, mask_R1LM: jax.Array, rows_R: jax.Array | None, kept: float, factor: str
) -> tuple[jax.Array, tuple]:
    query_RNLD, key_RNMD, value_RNMD = made_once(tuple(rounded(x, factor) for x in heads))
    power_RNLM = powers(_product("pld,pmd->plm", query_RNLD, key_RNMD), mask_R1LM)
    total_RNL1 = power_RNLM.sum(axis=-1, keepdims=True)
    power_RNLM = rounded(power_RNLM, factor)
    # What dropout scales up is not the weights, but what was seen, which is less.
    seen_RNLD = _product("plm,pmd->pld", left(power_RNLM, rows_R, 1 - kept), value_RNMD) / (total_RNL1 * kept)
    return seen_RNLD, (query_RNLD, key_RNMD, value_RNMD, rows_R, power_RNLM, total_RNL1, seen_RNLD)


def _backward(kept: float, factor: str, residuals: tuple, gradient_RNLD: jax.Array) -> tuple:
    query_RNLD, key_RNMD, value_RNMD, rows_R, power_RNLM, total_RNL1, seen_RNLD = residuals
    gradient_RNLD = rounded(gradient_RNLD / (total_RNL1 * kept), factor)
    # Of the rounded gradient too: so the gradients of a token's scores still add up to nothing.
    of_total_RNL1 = -(gradient_RNLD * seen_RNLD).sum(axis=3, keepdims=True) * kept
    of_value_RNDM = _product("pdl,plm->pdm", gradient_RNLD.swapaxes(2, 3), left(power_RNLM, rows_R, 1 - kept))
    of_power_RNLM = left(_product("pld,pmd->plm", gradient_RNLD, value_RNMD), rows_R, 1 - kept) + of_total_RNL1
    of_score_RNLM = rounded(power_RNLM * of_power_RNLM, factor)
    of_query_RNLD = _product("plm,pmd->pld", of_score_RNLM, key_RNMD)
    of_key_RNDM = _product("pdl,plm->pdm", query_RNLD.swapaxes(2, 3), of_score_RNLM)
    # In this order of axes: XLA would transpose them anew in whatever reads them.
    of_key_RNMD, of_value_RNMD = made_once((of_key_RNDM.swapaxes(2, 3), of_value_RNDM.swapaxes(2, 3)))
    return (of_query_RNLD, of_key_RNMD, of_value_RNMD), None, None


_rounded.defvjp(_forward, _backward)


def _product(equation: str, a_RN: jax.Array, b_RN: jax.Array) -> jax.Array:
    """The product of each row and head, of arrays [R, N, ...]; float32."""
    a_P, b_P = (reshape_rows(x, -1, *x.shape[2:]) for x in (a_RN, b_RN))
    product_P = jnp.einsum(equation, a_P, b_P, preferred_element_type=jnp.float32)
    return reshape_rows(product_P, *a_RN.shape[:2], *product_P.shape[1:])
