"""Positions in attention: by rotation of queries and keys (Su et al. 2021), or a bias of scores (Raffel et al. 2020).

Rotary position embeddings turn queries and keys by angles that grow with the position. The halves of a head are turned
against one another ("rotate half"), as in every published family here.

T5's relative bias is by the distance of two tokens (section 2.1). Distances fall into 32 buckets: 16 of tokens before,
16 of those behind. The first eight of each are distances, the others are ranges that grow up to 128.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from retrieval.common.errors import UserError

BUCKETS = 32
# Where each bucket of a side begins. Whole numbers: a logarithm in float32 is off by one at 16, 32 and 64.
_FROM = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91])


class Rotation(NamedTuple):
    """The cosines and sines of a row's positions, float32 [R, 1, D / 2, L]."""

    cos_R1DL: jax.Array
    sin_R1DL: jax.Array


def rotation(positions_RL: jax.Array, frequencies_D: np.ndarray) -> Rotation:
    """The angles of positions.

    They are products of elements, not a matrix product: a TPU would round that to bfloat16, and 257 to 256.

    Args:
      frequencies_D: as `frequencies` gives them, [D / 2].
    """
    angle_R1DL = positions_RL.astype(jnp.float32)[:, None, None, :] * frequencies_D[:, None]
    return Rotation(jnp.cos(angle_R1DL), jnp.sin(angle_R1DL))


def rotate(x_RNDL: jax.Array, rotation: Rotation) -> jax.Array:
    """Queries or keys [R, N, D, L], turned in float32, in their own type."""
    first, second = jnp.split(x_RNDL.astype(jnp.float32), 2, axis=2)
    cos, sin = rotation
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2).astype(x_RNDL.dtype)


def frequencies(head_size: int, theta: float, scaling: str = "") -> np.ndarray:
    """The angle of one position, float32 [D / 2], of the pairs of a head's values.

    Args:
      scaling: as `Architecture.rope_scaling`.
    """
    exponent = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    kind, *numbers = scaling.split(":")
    try:
        values = list(map(float, numbers))
        frequency = (1 / np.float32(theta) ** exponent).astype(np.float32)
        if kind == "linear":
            (factor,) = values
            return frequency / np.float32(factor)
        if kind == "llama3":
            # Long waves are made longer, short ones stay, and between them it is a mixture.
            factor, low, high, original = values
            share = np.clip((original / (2 * math.pi / frequency) - low) / (high - low), 0, 1)
            return ((1 - share) * frequency / factor + share * frequency).astype(np.float32)
    except (TypeError, ValueError) as error:
        raise UserError(f"rope_scaling {scaling!r} has not the numbers that its kind needs") from error
    if scaling:
        raise UserError(f"rope_scaling {scaling!r} is neither linear:F nor llama3:F:LOW:HIGH:ORIGINAL")
    return frequency


class RelativeBias(nnx.Module):
    """One number a bucket and head, [32, N], for all layers."""

    def __init__(self, heads: int, rngs: nnx.Rngs):
        init = nnx.initializers.truncated_normal(0.02)
        self.embedding = nnx.Param(init(rngs.params(), (BUCKETS, heads)))

    def __call__(self, length: int) -> jax.Array:
        """What is added to scores, float32 [1, N, L, M].

        The texts of a packed row lie in one piece, so distances in the row are those in the text.
        """
        width = 2 * length  # the distances from 1 - L to L - 1, and one more
        one_hot_WB = np.eye(BUCKETS, dtype=np.float32)[bucket(np.arange(width) - (length - 1))]
        by_distance_NW = jnp.einsum("wb,bn->nw", one_hot_WB, self.embedding[...], precision=jax.lax.Precision.HIGHEST)
        # Row l is that of row 0, moved by l places: the same values, read with a period of one less. No gather.
        N = len(by_distance_NW)
        repeated_N = jnp.broadcast_to(by_distance_NW[:, None], (N, length, width)).reshape(N, -1)
        rows_NLW = repeated_N[:, : length * (width - 1)].reshape(N, length, width - 1)
        return rows_NLW[None, :, :, length - 1 :].astype(jnp.float32)


def bucket(distance: np.ndarray) -> np.ndarray:
    """The bucket of each distance, of the key's place less the query's."""
    return np.where(distance > 0, BUCKETS // 2, 0) + np.searchsorted(_FROM, np.abs(distance), side="right") - 1
