"""DeepCT's loss: the squared error of the weights of terms.

Letters of shapes: B passages of the global batch, L tokens of each.
"""

import jax
import jax.numpy as jnp


def term_regression(
    weight_BL: jax.Array, target_BL: jax.Array, counts_BL: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The squared error of tokens (Dai & Callan 2019, section 3.1).

    Each passage's sum over its tokens is scaled by B / (tokens of the batch): the mean of the result over the batch is
    the mean over tokens.

    Args:
      target_BL: the share of the passage's queries that a token's word is in.
      counts_BL: 1 for the first piece of a word, 0 for other tokens and for padding.

    Returns:
      The loss [B], and 'absolute_error' [B], scaled likewise.
    """
    counts_BL = counts_BL.astype(jnp.float32)
    error_BL = weight_BL.astype(jnp.float32) - target_BL
    scale = len(counts_BL) / jnp.maximum(counts_BL.sum(), 1)
    loss_B, absolute_B = (scale * (counts_BL * x_BL).sum(axis=1) for x_BL in (jnp.square(error_BL), jnp.abs(error_BL)))
    return loss_B, {"absolute_error": absolute_B}
