"""RMSNorm (Zhang & Sennrich 2019): a row divided by the root of its mean square, times a learnt scale."""

import jax
import jax.numpy as jnp
from flax import nnx


class RMSNorm(nnx.Module):
    """Its parameter `scale` is [H].

    With `plus_one` the scale is stored less 1, as in Gemma.
    """

    def __init__(self, size: int, *, epsilon: float, plus_one: bool = False):
        self.epsilon, self.plus_one = epsilon, plus_one
        self.scale = nnx.Param(jnp.zeros(size) if plus_one else jnp.ones(size))

    def __call__(self, x: jax.Array, axis: int = -1) -> jax.Array:
        """[..., H, ...] to float32 of the same shape; `axis` is that of H."""
        x = x.astype(jnp.float32)
        scale = self.scale[...].astype(jnp.float32) + self.plus_one
        normed = x * jax.lax.rsqrt(jnp.square(x).mean(axis=axis, keepdims=True) + self.epsilon)
        return normed * scale.reshape(-1, *[1] * (x.ndim - 1 - axis % x.ndim))
