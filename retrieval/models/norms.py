"""LayerNorm (Ba et al. 2016) that passes over a row once, forward and backward; and RMSNorm.

The usual way takes the mean of a row, then the mean of the squared distances to it. Those are two passes, and JAX's
gradient keeps what lies between them in float32. Here both sums are taken at once, of the distances to a value near
the mean. So nothing cancels where the mean is large, as it does in the mean of the squares less the square of the mean.
The gradient reads the input again.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

_FIRST = 16  # values of a row whose mean is near enough: one that lies far off hardly moves it


class LayerNorm(nnx.LayerNorm):
    """The parameters of flax's, with or without a bias, and the same values to within float32; float32 out."""

    def __call__(self, x: jax.Array) -> jax.Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        """[..., H] to float32 [..., H]."""
        assert self.scale is not None, "every one here has a scale"
        scale_H = self.scale[...].astype(jnp.float32)
        bias_H = jnp.zeros_like(scale_H) if self.bias is None else self.bias[...].astype(jnp.float32)
        return _normed(x, scale_H, bias_H, self.epsilon)


class RMSNorm(nnx.Module):
    """A row divided by the root of its mean square, times a learnt scale [H] (Zhang & Sennrich 2019).

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


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normed(x: jax.Array, scale_H: jax.Array, bias_H: jax.Array, epsilon: float) -> jax.Array:
    return _forward(x, scale_H, bias_H, epsilon)[0]


def _forward(x: jax.Array, scale_H: jax.Array, bias_H: jax.Array, epsilon: float) -> tuple[jax.Array, tuple]:
    mean, inverse = _moments(x, epsilon)
    return _standard(x, mean, inverse) * scale_H + bias_H, (x, scale_H, mean, inverse)


def _backward(_: float, residuals: tuple, gradient: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale_H, mean, inverse = residuals
    standard, rows = _standard(x, mean, inverse), tuple(range(x.ndim - 1))
    scaled = gradient * scale_H
    along = (scaled * standard).mean(axis=-1, keepdims=True)
    of_x = inverse * (scaled - scaled.mean(axis=-1, keepdims=True) - standard * along)
    return of_x.astype(x.dtype), (gradient * standard).sum(axis=rows), gradient.sum(axis=rows)


_normed.defvjp(_forward, _backward)


def _moments(x: jax.Array, epsilon: float) -> tuple[jax.Array, jax.Array]:
    """Of each row, the mean distance and one over the deviation, both float32 [..., 1]."""
    distance = _distance(x)
    mean = distance.mean(axis=-1, keepdims=True)
    square = jnp.square(distance).mean(axis=-1, keepdims=True)
    return mean, jax.lax.rsqrt(jnp.maximum(square - jnp.square(mean), 0) + epsilon)


def _standard(x: jax.Array, mean: jax.Array, inverse: jax.Array) -> jax.Array:
    return (_distance(x) - mean) * inverse


def _distance(x: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    return x - x[..., :_FIRST].mean(axis=-1, keepdims=True)
