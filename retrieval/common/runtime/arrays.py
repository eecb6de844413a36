"""What every room does to arrays that are spread over devices."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def reshape_rows(x: jax.Array, *shape: int) -> jax.Array:
    """`x.reshape(shape)`, where the first axis of both is over the same devices and no other is over any.

    Under Explicit mesh axes, a split of rows that lie on several axes must be told so, and a reshape of a single row,
    which would lie on none.
    """
    sharding = jax.typeof(x).sharding
    return jnp.reshape(x, shape, out_sharding=NamedSharding(sharding.mesh, P(*sharding.spec[:1])))


def on_host() -> contextlib.AbstractContextManager:
    """Within it arrays are made in the host's memory, not on its first accelerator, which has less."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # where JAX_PLATFORMS leaves the CPU out
        return contextlib.nullcontext()


def traced_device() -> Any:
    """A device of those that a program is traced for; one of an abstract mesh knows its kind and platform alone."""
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def is_on_cpu() -> bool:
    """Whether a program is traced for CPUs."""
    return traced_device().platform == "cpu"


def on_every_device(tree: Any) -> Any:
    """The all-gather of arrays whose rows are sharded over devices; without a mesh, the identity."""
    return tree if jax.sharding.get_abstract_mesh().empty else jax.reshard(tree, P())


def first_highest(x: jax.Array) -> jax.Array:
    """`x.argmax(axis=-1)`, int32; without a gradient.

    Two plain reductions: on a CPU argmax, which carries a place along, takes several times as long.
    """
    # Made once: what is compared must have the same bits.
    x = jax.lax.optimization_barrier(jax.lax.stop_gradient(x))
    is_highest = x == x.max(axis=-1, keepdims=True)
    last = x.shape[-1] - 1
    return jnp.where(is_highest, jnp.arange(last + 1, dtype=jnp.int32), last).min(axis=-1)
