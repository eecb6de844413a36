"""The device mesh, and where batches and parameters live on it."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from retrieval.errors import UserError, divisors, listed, near
from retrieval.runtime.arrays import TENSOR

Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm] (JAX declares it as a variable)

DATA, FSDP = "data", "fsdp"


def make_mesh(
    fsdp: int = 1,
    devices: Sequence[Device] | None = None,
    tensor: int = 1,
) -> jax.sharding.Mesh:
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
    rules: Sequence[tuple[str, Sequence[str | None]]] = (),
    replicate_below: int = 0,
    is_stacked: Callable[[tuple], bool] = lambda path: False,
    is_table: Callable[[tuple], bool] = lambda path: False,
    tensor_axis: Callable[[tuple], int | None] = lambda path: None,
) -> Any:
    """A sharding for every parameter: that of the first rule whose regular expression is found in its path.

    Without a rule the largest dimension that the axis `fsdp` divides is sharded over it, of equal ones the first.

    Args:
      params: nested dicts of arrays, or of `jax.ShapeDtypeStruct`.
      rules: (regular expression, an axis of the mesh or None for every dimension); paths are like
        'query_tower/encoder/layers/mlp_in/kernel'.
      replicate_below: parameters with fewer values are whole on every device, unless a rule says otherwise.
      is_stacked: whether the first axis of the parameter at a path is that of the layers. It is never sharded: a device
        that has other layers than its neighbour could only wait for it.
      is_table: whether the parameter at a path is a table of which rows are looked up. Its columns are sharded where
        they can be: then a row is looked up without the table of other devices.
      tensor_axis: the axis of the parameter at a path, from the last (-1) on, that is sharded over `tensor` devices.

    Raises:
      UserError: a rule is malformed, or does not fit the shape of a parameter.
    """
    patterns = [_compiled(rule, mesh) for rule in rules]

    def choose(path: tuple, leaf: Any) -> NamedSharding:
        name, stacked = _name(path), is_stacked(path)
        for pattern, spec in patterns:
            if pattern.search(name):
                _check_fits(name, leaf.shape, spec, mesh, stacked)
                return NamedSharding(mesh, P(*spec))
        spec = _by_shape(leaf.shape, mesh.shape[FSDP], replicate_below, stacked, is_table(path))
        if TENSOR in mesh.axis_names and (axis := tensor_axis(path)) is not None:
            kept = list(leaf.shape)
            kept[axis] = 1  # no axis is shared twice
            spec = list(_by_shape(tuple(kept), mesh.shape[FSDP], 0, stacked, False)) or [None] * len(kept)
            spec[axis] = TENSOR
        return NamedSharding(mesh, P(*spec))

    return jax.tree.map_with_path(choose, params)


def check_rules(params: Any, rules: Sequence[tuple[str, Sequence[str | None]]]) -> None:
    """Every rule is meant for something."""
    names = [_name(path) for path, _ in jax.tree.leaves_with_path(params)]
    for pattern, _ in rules:
        if not any(re.search(pattern, name) for name in names):
            similar = near(pattern, {part for name in names for part in name.split("/")})
            hint = f"did you mean {' or '.join(similar)}? " if similar else ""
            raise UserError(f"config.mesh.rules: '{pattern}' is in no parameter's path; {hint}they are {listed(names)}")


def _by_shape(shape: tuple[int, ...], size: int, replicate_below: int, stacked: bool, is_table: bool) -> P:
    fitting = [axis for axis in range(stacked, len(shape)) if shape[axis] % size == 0]
    if size == 1 or math.prod(shape) < replicate_below or not fitting:
        return P()
    last = len(shape) - 1
    chosen = last if is_table and last in fitting else max(fitting, key=lambda axis: shape[axis])
    return P(*[FSDP if axis == chosen else None for axis in range(len(shape))])


def _compiled(rule: Sequence, mesh: jax.sharding.Mesh) -> tuple[re.Pattern, tuple]:
    if not (isinstance(rule, list | tuple) and len(rule) == 2 and isinstance(rule[0], str)):
        raise UserError(f"config.mesh.rules: {rule!r}: a rule is a pair, of a regular expression and axes")
    pattern, spec = rule
    axes = [axis for axis in spec if axis is not None] if isinstance(spec, list | tuple) else [spec]
    known = all(axis in mesh.axis_names for axis in axes)
    if axes == [spec] or not known or len(set(axes)) < len(axes):
        raise UserError(
            f"config.mesh.rules: '{pattern}' has {spec!r}: each dimension needs None or an axis "
            f"({', '.join(mesh.axis_names)}), each axis once"
        )
    try:
        return re.compile(pattern), tuple(spec)
    except re.error as error:
        raise UserError(f"config.mesh.rules: '{pattern}' is no regular expression: {error}") from error


def _check_fits(name: str, shape: tuple[int, ...], spec: tuple, mesh: jax.sharding.Mesh, stacked: bool) -> None:
    axes = [(axis, mesh.shape[axis], size) for size, axis in zip(shape, spec) if axis is not None]
    problems = [f"{axis}={devices} does not divide {size}" for axis, devices, size in axes if size % devices]
    if stacked and spec and spec[0] is not None:
        problems = ["the first dimension is that of the layers, which cannot be sharded"]
    if len(spec) > len(shape):
        problems = ["more axes than dimensions"]
    if problems:
        raise UserError(f"config.mesh.rules: {spec} does not fit {name}, which is {shape}: {problems[0]}")


def _name(path: tuple) -> str:
    return "/".join(str(key.key) for key in path)
