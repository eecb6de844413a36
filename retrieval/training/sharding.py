"""The device mesh, and where batches and parameters live on it."""

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

DATA = "data"


def make_mesh() -> jax.sharding.Mesh:
    """All devices in one Explicit axis: batches are sharded over it, parameters are replicated."""
    return jax.make_mesh((jax.device_count(),), (DATA,))


def local_mesh() -> jax.sharding.Mesh:
    """As `make_mesh`, of this host's devices only: for work in which the hosts do not meet."""
    devices = jax.local_devices()
    return jax.make_mesh((len(devices),), (DATA,), devices=devices)


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Rows over the data axis."""
    return NamedSharding(mesh, P(DATA))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    """The same value on every device."""
    return NamedSharding(mesh, P())


def place(values: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """An array that every host has whole, as one of the mesh; each puts its part on its devices."""
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
