"""The device mesh, and where batches and parameters live on it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from retrieval.common.errors import UserError, divisors
from retrieval.common.runtime.arrays import TENSOR

Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm] (JAX declares it as a variable)

DATA, FSDP = "data", "fsdp"


def make_mesh(fsdp: int = 1, devices: Sequence[Device] | None = None, tensor: int = 1) -> jax.sharding.Mesh:
    """All devices (or those given) in two Explicit axes, or three.

    Batches are sharded over the first two, parameters over `fsdp` devices and replicated over the others; `tensor`
    devices with the same rows share the heads and the MLP of each layer.

    Raises:
      UserError: `fsdp` or `tensor` does not divide the devices.
    """
    count = left = len(jax.devices() if devices is None else devices)
    for name, size in (("tensor", tensor), ("fsdp", fsdp)):
        if size < 1 or left % size:
            of = "" if left == count else f" over config.mesh.tensor={tensor}"
            way = f"take {divisors(size, left)}"
            raise UserError(f"config.mesh.{name}={size} does not divide the {count} devices{of}: {way}")
        left //= size
    shape = {DATA: left, FSDP: fsdp} | ({TENSOR: tensor} if tensor > 1 else {})
    return jax.make_mesh(tuple(shape.values()), tuple(shape), devices=devices)


def local_mesh(fsdp: int = 1, devices: Sequence[Device] | None = None, tensor: int = 1) -> jax.sharding.Mesh:
    """As `make_mesh`, of one host's devices only (this one's, or those given): for work in which the hosts do not meet.

    Where `fsdp` or `tensor` does not divide them, parameters are sharded over as many as divide both.
    """
    devices = jax.local_devices() if devices is None else devices
    tensor = math.gcd(tensor, len(devices))
    return make_mesh(math.gcd(fsdp, len(devices) // tensor), devices, tensor)


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Rows over every axis but that of tensors."""
    return NamedSharding(mesh, P(tuple(axis for axis in mesh.axis_names if axis != TENSOR)))


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
    tensor_axis: Callable[[tuple], int | None] = lambda path: None,
) -> Any:
    """A sharding for every parameter: the largest dimension that the axis `fsdp` divides, of equal ones the first.

    Args:
      params: nested dicts of arrays, or of `jax.ShapeDtypeStruct`.
      replicate_below: parameters with fewer values are whole on every device.
      is_stacked: whether the first axis of the parameter at a path is that of the layers. It is never sharded: a device
        that has other layers than its neighbour could only wait for it.
      is_table: whether the parameter at a path is a table of which rows are looked up. Its columns are sharded where
        they can be: then a row is looked up without the table of other devices.
      tensor_axis: the axis of the parameter at a path, from the last (-1) on, that is sharded over `tensor` devices.
    """

    def choose(path: tuple, leaf: Any) -> NamedSharding:
        stacked = is_stacked(path)
        spec = _by_shape(leaf.shape, mesh.shape[FSDP], replicate_below, stacked, is_table(path))
        if TENSOR in mesh.axis_names and (axis := tensor_axis(path)) is not None:
            kept = list(leaf.shape)
            kept[axis] = 1  # no axis is shared twice
            spec = list(_by_shape(tuple(kept), mesh.shape[FSDP], 0, stacked, False)) or [None] * len(kept)
            spec[axis] = TENSOR
        return NamedSharding(mesh, P(*spec))

    return jax.tree.map_with_path(choose, params)


def _by_shape(shape: tuple[int, ...], size: int, replicate_below: int, stacked: bool, is_table: bool) -> P:
    fitting = [axis for axis in range(stacked, len(shape)) if shape[axis] % size == 0]
    if size == 1 or math.prod(shape) < replicate_below or not fitting:
        return P()
    last = len(shape) - 1
    chosen = last if is_table and last in fitting else max(fitting, key=lambda axis: shape[axis])
    return P(*[FSDP if axis == chosen else None for axis in range(len(shape))])
