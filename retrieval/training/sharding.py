"""The device mesh, and where batches and parameters live on it."""

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

DATA = "data"


def make_mesh() -> jax.sharding.Mesh:
    """All devices in one Explicit axis: batches are sharded over it, parameters are replicated."""
    return jax.make_mesh((jax.device_count(),), (DATA,))


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Rows over the data axis."""
    return NamedSharding(mesh, P(DATA))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    """The same value on every device."""
    return NamedSharding(mesh, P())
