"""What keeps sparse vectors sparse: terms of the loss that grow with their weights.

All are of the global batch, so they are the same on any number of devices: the mean square of a device's own mean is
larger than that of all, and would press the same settings harder.

Letters of shapes: B vectors, V vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from retrieval.runtime.arrays import on_every_device


def flops(weight_BV: jax.Array) -> jax.Array:
    """The sum over tokens of the squared mean weight (Paria et al. 2020), as a product of two vectors costs."""
    return jnp.square(jnp.abs(weight_BV).mean(axis=0)).sum()


def l1(weight_BV: jax.Array) -> jax.Array:
    """The mean over vectors of the sum of their weights."""
    return jnp.abs(weight_BV).sum(axis=1).mean()


REGULARIZERS: dict[str, Callable[[jax.Array], jax.Array]] = {"flops": flops, "l1": l1}


def strength(step: jax.Array, steps: int) -> jax.Array:
    """The share of a regularizer at a step: it rises with the square of the steps to 1 (Formal et al. 2021, section
    4); 0 steps is 1 from the first one on."""
    return jnp.square(jnp.minimum(1.0, (step + 1) / steps)) if steps else jnp.ones(())


def active(weight_BV: jax.Array) -> jax.Array:
    """How many tokens of each vector have a weight, [B]: a mean near 0 says that vectors have collapsed."""
    return on_every_device((weight_BV > 0).sum(axis=1).astype(jnp.float32))
