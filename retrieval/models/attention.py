"""Attention: the mean of the values that a token sees, by the softmax of its scores.

It has forms that give the same to within bfloat16. `plain` is the definition. `stored` has the same values and a
gradient of its own, which is cheaper on a TPU.

Letters of shapes beside those of `text`: N heads, D head size, M the tokens attended to.
"""

import functools
from typing import TypeAlias

import jax
import jax.numpy as jnp

from retrieval.models.dropout import dropout, left, row_keys

# Queries [R, N, D, L], keys and values [R, N, D, M].
Heads: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]

# Arrays that are stored: without this the compiler makes them anew in every product that reads them.
made_once = jax.lax.optimization_barrier


def attend(heads: Heads, mask_R1LM: jax.Array, rate: float, dropout_key: jax.Array | None) -> jax.Array:
    """What each token sees, [R, N, D, L] in the type of the queries.

    Args:
      mask_R1LM: whom each token sees, at least one of them; [R, 1, 1, M] where all see the same.
      rate: of dropout on the weights; it acts where there is a key.
    """
    form = stored if heads[0].dtype == jnp.bfloat16 else plain
    return form(heads, mask_R1LM, rate, dropout_key)


def plain(
    heads: Heads, mask_R1LM: jax.Array, rate: float, dropout_key: jax.Array | None, bias_RNLM: jax.Array | None = None
) -> jax.Array:
    """As `attend`, with a bias of the scores; JAX makes the gradient."""
    query_RNDL, key_RNDM, value_RNDM = heads
    power_RNLM = powers(_scores(query_RNDL, key_RNDM, bias_RNLM), mask_R1LM)
    weight_RNLM = dropout(power_RNLM.astype(query_RNDL.dtype), rate, dropout_key)
    return _mean(weight_RNLM, value_RNDM, power_RNLM.sum(axis=-1))


def stored(heads: Heads, mask_R1LM: jax.Array, rate: float, dropout_key: jax.Array | None) -> jax.Array:
    """As `attend`; the gradient reads two arrays [R, N, L, M] in the type of the queries.

    JAX's own reads the scores in float32, and each of its products takes their exponentials once more. On a TPU v5e
    that made 7 % of the paper's step, by the compiler's estimate.
    """
    if dropout_key is None or rate == 0:
        return _stored(heads, mask_R1LM, None, 0.0)
    return _stored(heads, mask_R1LM, row_keys(heads[0], dropout_key), rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _stored(heads: Heads, mask_R1LM: jax.Array, rows_R: jax.Array | None, rate: float) -> jax.Array:
    return _forward(heads, mask_R1LM, rows_R, rate)[0]


def _forward(heads: Heads, mask_R1LM: jax.Array, rows_R: jax.Array | None, rate: float) -> tuple[jax.Array, tuple]:
    query_RNDL, key_RNDM, value_RNDM = heads
    power_RNLM = powers(_scores(query_RNDL, key_RNDM), mask_R1LM)
    # Their sum stays in the same barrier: the compiler then makes it as it makes the powers.
    power_RNLM, total_RNL = made_once((power_RNLM.astype(query_RNDL.dtype), power_RNLM.sum(axis=-1)))
    # What dropout scales up is not the weights, but what was seen, which is less.
    seen_RNDL = _mean(left(power_RNLM, rows_R, rate), value_RNDM, total_RNL * (1 - rate))
    return seen_RNDL, (*heads, rows_R, power_RNLM, total_RNL, seen_RNDL)


def _backward(rate: float, residuals: tuple, gradient_RNDL: jax.Array) -> tuple:
    query_RNDL, key_RNDM, value_RNDM, rows_R, power_RNLM, total_RNL, seen_RNDL = residuals
    dtype = query_RNDL.dtype
    gradient_RNDL = made_once(gradient_RNDL).astype(jnp.float32) / total_RNL[:, :, None]
    of_total_RNL = -(gradient_RNDL * seen_RNDL).sum(axis=2)
    gradient_RNDL = (gradient_RNDL / (1 - rate)).astype(dtype)
    of_value_RNDM = jnp.einsum("rnlm,rndl->rndm", left(power_RNLM, rows_R, rate), gradient_RNDL)
    of_power_RNLM = jnp.einsum("rndl,rndm->rnlm", gradient_RNDL, value_RNDM, preferred_element_type=jnp.float32)
    of_power_RNLM = left(of_power_RNLM, rows_R, rate) + of_total_RNL[..., None]
    of_score_RNLM = made_once((power_RNLM * of_power_RNLM).astype(dtype))
    of_query_RNDL = jnp.einsum("rnlm,rndm->rndl", of_score_RNLM, _scaled(key_RNDM))
    of_key_RNDM = jnp.einsum("rnlm,rndl->rndm", of_score_RNLM, _scaled(query_RNDL))
    return (of_query_RNDL, of_key_RNDM, of_value_RNDM), None, None


_stored.defvjp(_forward, _backward)


def powers(score_RNLM: jax.Array, mask_R1LM: jax.Array) -> jax.Array:
    """The softmax before it is divided, float32 [R, N, L, M]; the greatest of a token is 1."""
    score_RNLM = jnp.where(mask_R1LM, score_RNLM, -jnp.inf)
    # Every token sees itself, padding sees padding: no row of the softmax is empty, and none is NaN.
    return jnp.exp(score_RNLM - jax.lax.stop_gradient(score_RNLM.max(axis=-1, keepdims=True)))


def _scores(query_RNDL: jax.Array, key_RNDM: jax.Array, bias_RNLM: jax.Array | None = None) -> jax.Array:
    score_RNLM = jnp.einsum("rndl,rndm->rnlm", query_RNDL, key_RNDM, preferred_element_type=jnp.float32)
    score_RNLM = score_RNLM / query_RNDL.shape[2] ** 0.5
    return score_RNLM if bias_RNLM is None else score_RNLM + bias_RNLM


def _mean(weight_RNLM: jax.Array, value_RNDM: jax.Array, total_RNL: jax.Array) -> jax.Array:
    """The mean of the values. The softmax divides what was seen, not the weights: those are many times as many."""
    seen_RNDL = jnp.einsum("rnlm,rndm->rndl", weight_RNLM, value_RNDM, preferred_element_type=jnp.float32)
    return (seen_RNDL / total_RNL[:, :, None]).astype(value_RNDM.dtype)


def _scaled(x_RNDL: jax.Array) -> jax.Array:
    """Divided by the root of the head's size, as scores are."""
    return (x_RNDL.astype(jnp.float32) / x_RNDL.shape[2] ** 0.5).astype(x_RNDL.dtype)
