"""The bias of attention's scores by the distance of two tokens (Raffel et al. 2020, section 2.1), as T5 has it.

Distances fall into 32 buckets: 16 of tokens before, 16 of those behind. The first eight of each are distances, the
others are ranges that grow up to 128.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

BUCKETS = 32
# Where each bucket of a side begins. Whole numbers: a logarithm in float32 is off by one at 16, 32 and 64.
_FROM = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91])


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
