"""Rotary position embeddings (Su et al. 2021): queries and keys are turned by angles that grow with the position.

The halves of a head are turned against one another ("rotate half"), as in every published family here.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from retrieval.errors import UserError


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


def rotate(x_RNDL: jax.Array, turned: Rotation) -> jax.Array:
    """Queries or keys [R, N, D, L], turned in float32, in their own type."""
    first, second = jnp.split(x_RNDL.astype(jnp.float32), 2, axis=2)
    cos, sin = turned
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2).astype(x_RNDL.dtype)


def frequencies(head_size: int, theta: float, scaling: str = "") -> np.ndarray:
    """The angle of one position, float32 [D / 2], of the pairs of a head's values.

    Args:
      scaling: as `Architecture.rope_scaling`.

    Raises:
      UserError: the scaling is none of those.
    """
    exponent = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    kind, *numbers = scaling.split(":")
    try:
        given = list(map(float, numbers))
        frequency = (1 / np.float32(theta) ** exponent).astype(np.float32)
        if kind == "linear":
            (factor,) = given
            return frequency / np.float32(factor)
        if kind == "llama3":
            return _llama3(frequency, *given)
    except (TypeError, ValueError) as error:
        raise UserError(f"rope_scaling {scaling!r} has not the numbers that its kind needs") from error
    if scaling:
        raise UserError(f"rope_scaling {scaling!r} is neither linear:F nor llama3:F:LOW:HIGH:ORIGINAL")
    return frequency


def _llama3(frequency: np.ndarray, factor: float, low: float, high: float, original: float) -> np.ndarray:
    """Long waves are made longer, short ones stay, and between them it is a mixture."""
    wave = 2 * math.pi / frequency
    share = np.clip((original / wave - low) / (high - low), 0, 1)
    return ((1 - share) * frequency / factor + share * frequency).astype(np.float32)
