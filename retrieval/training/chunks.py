"""Gradient caching (Gao et al. 2021): a batch through an encoder in chunks, with the memory of one and exact gradients.

What the forward pass keeps of a chunk is its rows and their embeddings. The backward pass computes the chunk again, now
with the gradient of its embeddings at hand, and adds up the gradients of the parameters.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from retrieval.common.runtime.arrays import reshape_rows


def in_chunks(
    encode: Callable[[Any, jax.Array | None], jax.Array], rows: Any, key: jax.Array | None, size: int
) -> jax.Array:
    """`encode(rows, key)`, `size` rows at a time. Each chunk has a dropout key of its own.

    A chunk takes rows at equal distances, so that every device of a batch that is sharded over rows has its share.

    Args:
      encode: its result has the rows' axis first.
      rows: a tree of arrays whose first axis is that of the batch, B rows (or groups of packed rows).
      size: rows of a chunk, in the whole mesh, as `recipe.check_chunks` accepts them; 0 for all at once, which computes
        nothing twice.

    Returns:
      What `encode` gives of all rows, [B, ...].
    """
    B = len(jax.tree.leaves(rows)[0])
    if size in (0, B):
        return encode(rows, key)
    assert B % size == 0, "`recipe.check_chunks` has refused it"
    keys = None if key is None else jax.random.split(key, B // size)
    chunk = jax.checkpoint(lambda part: encode(*part), prevent_cse=False)
    encoded_CS = jax.lax.map(chunk, (jax.tree.map(lambda x: _cut(x, B // size), rows), keys))
    return reshape_rows(jnp.moveaxis(encoded_CS, 0, 1), B, *encoded_CS.shape[2:])


def _cut(x: jax.Array, count: int) -> jax.Array:
    """[B, ...] to [count, B / count, ...]: row b is row b // count of chunk b % count."""
    return jnp.moveaxis(reshape_rows(x, -1, count, *x.shape[1:]), 1, 0)
