"""One vector for each text of the hidden states of its tokens, with one text a row or several.

Each leaves out the first `start` tokens of every text, such as [CLS] and a prompt. They are those of
sentence-transformers, for which a token's weight in `weighted_mean` is its place in the text: 1, 2, ...
Shapes have the letters of `models/text.py`.
"""

import jax
import jax.numpy as jnp

from retrieval.common.runtime.arrays import reshape_rows
from retrieval.models.text import Text, by_group


def first(x_RLH: jax.Array, text: Text, start: int = 0) -> jax.Array:
    """The vector at each text's token number `start`, by default [CLS], [B, H]."""
    if text.starts_GC is None:
        return x_RLH[:, min(start, x_RLH.shape[1] - 1)]
    return _at(x_RLH, text.starts_GC + start)


def last(x_RLH: jax.Array, text: Text, start: int = 0) -> jax.Array:
    """The vector of each text's last token, [B, H]. That is no padding, whatever its id is."""
    member_GCT = _members(text, start)
    return _at(x_RLH, (member_GCT * jnp.arange(member_GCT.shape[2])).max(axis=2))


def mean(x_RLH: jax.Array, text: Text, start: int = 0) -> jax.Array:
    """The mean over each text's tokens, [CLS] and [SEP] among them. It is float32 [B, H], zero for a row of padding."""
    total_BH, count_B1 = _sums(x_RLH, _members(text, start))
    return total_BH / jnp.maximum(count_B1, 1)


def weighted_mean(x_RLH: jax.Array, text: Text, start: int = 0) -> jax.Array:
    """The mean over each text's tokens, of which later ones weigh more; as `mean`."""
    member_GCT = _members(text, start)
    place_GT = by_group(text.positions_RL, member_GCT.shape[0]) + 1
    total_BH, weight_B1 = _sums(x_RLH, member_GCT * place_GT[:, None])
    return total_BH / jnp.maximum(weight_B1, 1)


POOLINGS = {"cls": first, "mean": mean, "last": last, "weighted_mean": weighted_mean}


def _members(text: Text, start: int) -> jax.Array:
    """1 where a token belongs to a text and is pooled, else 0, int32 [G, C, T]."""
    G, C = (text.segments_RL.shape[0], 1) if text.starts_GC is None else text.starts_GC.shape
    segments_RL = jnp.where(text.positions_RL < start, 0, text.segments_RL) if start else text.segments_RL
    return (by_group(segments_RL, G)[:, None] == jnp.arange(1, C + 1)[:, None]).astype(jnp.int32)


def _sums(x_RLH: jax.Array, weight_GCT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The weighted sums of each text's vectors, float32 [B, H], and of the weights, [B, 1].

    A product with the matrix of memberships: no scatter, and C products for a value of `x` are few.
    """
    G, C, _ = weight_GCT.shape
    weight_GCT = weight_GCT.astype(jnp.float32)
    total_GCH = jnp.einsum("gct,gth->gch", weight_GCT, by_group(x_RLH.astype(jnp.float32), G))
    return reshape_rows(total_GCH, G * C, -1), reshape_rows(weight_GCT.sum(axis=2), G * C, 1)


def _at(x_RLH: jax.Array, index_GC: jax.Array) -> jax.Array:
    """The vectors at places in the rows of each group, [B, H]."""
    x_GCH = jnp.take_along_axis(by_group(x_RLH, index_GC.shape[0]), index_GC[:, :, None], axis=1)
    return reshape_rows(x_GCH, -1, x_RLH.shape[-1])
