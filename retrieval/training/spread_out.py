"""A regulariser that spreads embeddings over the sphere, so that they use all dimensions (Zhang et al. 2017)."""

import jax
import jax.numpy as jnp

from retrieval.training.candidate_blocks import everywhere, product


def moments(embedding_BE: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean and the mean square of the cosines of all pairs of a batch, without those of a vector with itself.

    Directions at random have means of 0 and 1 / E. Computed of sums over the batch, [E] and [E, E], not of pairs.
    """
    embedding_BE = embedding_BE.astype(jnp.float32)
    length_B1 = jnp.sqrt(jnp.maximum(jnp.square(embedding_BE).sum(axis=1, keepdims=True), 1e-24))
    unit_BE = embedding_BE / length_B1
    own_B = jnp.square(unit_BE).sum(axis=1)  # 1, or 0 of zeros
    pairs = max(1, len(embedding_BE) * (len(embedding_BE) - 1))
    total_E, total_EE = unit_BE.sum(axis=0), product("be,bf->ef", unit_BE, unit_BE, everywhere())
    first = (jnp.square(total_E).sum() - own_B.sum()) / pairs
    return first, (jnp.square(total_EE).sum() - jnp.square(own_B).sum()) / pairs


def spread_out(embeddings: tuple[jax.Array, ...], of_square: float, of_mean: float) -> jax.Array:
    """of_mean x mean^2 + of_square x max(0, mean square - 1 / E), on average over some sides [B, E] of a batch."""
    total = jnp.zeros(())
    for embedding_BE in embeddings:
        first, second = moments(embedding_BE)
        total += of_mean * jnp.square(first) + of_square * jax.nn.relu(second - 1 / embedding_BE.shape[1])
    return total / len(embeddings)
