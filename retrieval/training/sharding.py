"""The device mesh, and where batches and parameters live on it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from retrieval.common.errors import UserError, divisors

Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm] (JAX declares it as a variable)

DATA, FSDP = "data", "fsdp"


def make_mesh(fsdp: int = 1, devices: Sequence[Device] | None = None) -> jax.sharding.Mesh:
    """All devices (or those given) in two Explicit axes.

    Batches are sharded over both, parameters over `fsdp` devices and replicated over the others.

    Raises:
      UserError: `fsdp` does not divide the devices.
    """
    count = len(jax.devices() if devices is None else devices)
    if fsdp < 1 or count % fsdp:
        raise UserError(f"config.mesh.fsdp={fsdp} does not divide the {count} devices: take {divisors(fsdp, count)}")
    return jax.make_mesh((count // fsdp, fsdp), (DATA, FSDP), devices=devices)


def local_mesh(fsdp: int = 1, devices: Sequence[Device] | None = None) -> jax.sharding.Mesh:
    """As `make_mesh`, of one host's devices only (this one's, or those given): for work in which the hosts do not meet.

    Where `fsdp` does not divide them, parameters are sharded over as many as divide both.
    """
    devices = jax.local_devices() if devices is None else devices
    return make_mesh(math.gcd(fsdp, len(devices)), devices)


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Rows over all axes."""
    return NamedSharding(mesh, P(mesh.axis_names))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    """The same value on every device."""
    return NamedSharding(mesh, P())


def place(values: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """An array that every host has whole, as one of the mesh; each puts its part on its devices."""
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def parameter_shardings(
    params: Any,
    mesh: jax.sharding.Mesh,
    *,
    replicate_below: int = 0,
    is_stacked: Callable[[tuple], bool] = lambda path: False,
    is_table: Callable[[tuple], bool] = lambda path: False,
) -> Any:
    """A sharding for every parameter: the largest dimension that the axis `fsdp` divides, of equal ones the first.

    Args:
      params: nested dicts of arrays, or of `jax.ShapeDtypeStruct`.
      replicate_below: parameters with fewer values are whole on every device.
      is_stacked: whether the first axis of the parameter at a path is that of the layers. It is never sharded: a device
        that has other layers than its neighbour could only wait for it.
      is_table: whether the parameter at a path is a table of which rows are looked up. Its columns are sharded where
        they can be: then a row is looked up without the table of other devices.
    """

    def choose(path: tuple, leaf: Any) -> NamedSharding:
        shape, size = leaf.shape, mesh.shape[FSDP]
        fitting = [axis for axis in range(is_stacked(path), len(shape)) if shape[axis] % size == 0]
        if size == 1 or math.prod(shape) < replicate_below or not fitting:
            return replicated(mesh)
        last = len(shape) - 1
        chosen = last if is_table(path) and last in fitting else max(fitting, key=lambda axis: shape[axis])
        return NamedSharding(mesh, P(*[FSDP if axis == chosen else None for axis in range(len(shape))]))

    return jax.tree.map_with_path(choose, params)
