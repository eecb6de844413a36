"""How active each token of the vocabulary is in a text: the highest logit of a masked language model over the text.

Logits of all places and tokens are never held at once: 128 texts of 256 tokens over 30,522 are 4 GB. They are made for
some places at a time. What the backward pass needs is where each token's highest one stands.

Letters of shapes: B texts, L tokens of a text, T blocks, C places of a block, H hidden size, V vocabulary.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from retrieval.training.candidate_blocks import summed

_PLACES = 8  # of a block


def activations(
    hidden_BLH: jax.Array, counted_BL: jax.Array, table_VH: jax.Array, bias_V: jax.Array, block: int = _PLACES
) -> jax.Array:
    """log(1 + relu(x)) of each token's highest logit x, float32 [B, V] (Formal et al. 2021, v2, equation 6).

    Args:
      hidden_BLH: what the output layer takes.
      counted_BL: the places that count. A text without any has a vector of zeros.
      table_VH, bias_V: of the output layer.
      block: places whose logits are there at once.
    """
    # The logarithm rises with its argument, so it is taken of the highest alone.
    return jnp.log1p(jax.nn.relu(_highest(hidden_BLH, counted_BL, table_VH, bias_V, block)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _highest(hidden_BLH: jax.Array, counted_BL: jax.Array, table_VH: jax.Array, bias_V: jax.Array, block: int) -> Any:
    return _forward(hidden_BLH, counted_BL, table_VH, bias_V, block)[0]


def _forward(
    hidden_BLH: jax.Array, counted_BL: jax.Array, table_VH: jax.Array, bias_V: jax.Array, block: int
) -> tuple[jax.Array, tuple]:
    def add(carry: tuple, of_block: tuple) -> tuple[tuple, None]:
        highest_BV, place_BV = carry
        hidden_BCH, counted_BC, place_C = of_block
        logit_BCV = jnp.where(counted_BC[:, :, None], _product("bch,vh->bcv", hidden_BCH, table_VH), -jnp.inf)
        new_BV = logit_BCV.max(axis=1)
        # The first of equal ones.
        first_BV = jnp.where(logit_BCV == new_BV[:, None], place_C[:, None], place_C[-1]).min(axis=1)
        is_higher_BV = new_BV > highest_BV
        return (jnp.where(is_higher_BV, new_BV, highest_BV), jnp.where(is_higher_BV, first_BV, place_BV)), None

    zero_BV = jnp.zeros_like(hidden_BLH[:, 0, :1], jnp.float32) + jnp.zeros_like(bias_V)
    start = zero_BV - jnp.inf, zero_BV.astype(jnp.int32) - 1
    (highest_BV, place_BV), _ = jax.lax.scan(add, start, _blocks(hidden_BLH, counted_BL, block))
    return highest_BV + bias_V, (hidden_BLH, counted_BL, table_VH, place_BV)


def _backward(block: int, residuals: tuple, gradient_BV: jax.Array) -> tuple:
    hidden_BLH, counted_BL, table_VH, place_BV = residuals

    def add(of_table_VH: jax.Array, of_block: tuple) -> tuple[jax.Array, jax.Array]:
        hidden_BCH, _, place_C = of_block
        chosen_BCV = place_BV[:, None] == place_C[:, None]
        gradient_BCV = jnp.where(chosen_BCV, gradient_BV[:, None], 0).astype(hidden_BLH.dtype)
        of_table_VH += _product("bcv,bch->vh", gradient_BCV, hidden_BCH, summed())
        return of_table_VH, _product("bcv,vh->bch", gradient_BCV, table_VH).astype(hidden_BLH.dtype)

    start = jnp.zeros_like(table_VH, jnp.float32)
    of_table_VH, of_hidden_TBCH = jax.lax.scan(add, start, _blocks(hidden_BLH, counted_BL, block))
    B, L, H = hidden_BLH.shape
    of_hidden_BLH = jnp.moveaxis(of_hidden_TBCH, 0, 1).reshape(B, -1, H)[:, :L]
    of_bias_V = jnp.einsum("bv->v", gradient_BV, out_sharding=summed())
    return of_hidden_BLH, None, of_table_VH.astype(table_VH.dtype), of_bias_V


_highest.defvjp(_forward, _backward)


def _blocks(hidden_BLH: jax.Array, counted_BL: jax.Array, block: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Places in blocks [T, ...], each with its number; behind the last one stand such as do not count."""
    B, L, _ = hidden_BLH.shape
    C = min(block, L)

    def cut(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, [(0, 0), (0, -L % C)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(B, -1, C, *x.shape[2:]), 1, 0)

    return cut(hidden_BLH), cut(counted_BL), jnp.arange(L + -L % C).reshape(-1, C)


def _product(equation: str, a: jax.Array, b: jax.Array, out_sharding: P | None = None) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32, out_sharding=out_sharding)
