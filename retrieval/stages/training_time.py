"""How long training takes: at least, by its operations, and by a step that is run on parameters of no meaning."""

import logging
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from retrieval.recipes import initial_parameters, train_state
from retrieval.recipes.examples import abstract_batch
from retrieval.recipes.placement import make_mesh
from retrieval.recipes.recipe import abstract_model
from retrieval.training import chips, sharding

_log = logging.getLogger(__name__)

_DAY = 24 * 3600
_FEW = 10**7  # tokens that no model of this project trains on for a day: for those nothing is traced
_CALLS = 3  # of a step that is timed, after a first one, which is compiled
_SIDE = 2048  # of the matrices whose product is timed


def warn_of_days(config: ConfigDict, vocab_size: Callable[[], int], mesh: jax.sharding.Mesh) -> None:
    """Says how long training will take on the devices of the mesh, where that is more than a day.

    Args:
      vocab_size: is asked of long runs alone: the others need not read a vocabulary yet.
    """
    data, train = config.data, config.train
    tokens = train.steps * train.batch_size * (data.query_length + data.document_length * (1 + data.negatives))
    if tokens < _FEW or train.minutes:
        return
    operations = train.steps * step_operations(config, vocab_size(), mesh)
    devices: Sequence[sharding.Device] = mesh.devices.flatten().tolist()
    rate = operations_per_second(devices)
    if operations > _DAY * rate:
        is_packed = data.pack.query or data.pack.document
        less = " (less where config.data.pack.auto packs short texts)" if data.pack.auto and not is_packed else ""
        _log.warning(
            "train: %d steps are %.2g operations, and %d devices here (%s) do %.2g a second at most: %s days or more%s"
            "; a size for one machine is --config=NAME:local, and config.train.steps counts the steps",
            *(train.steps, operations, len(devices), devices[0].device_kind, rate),
            *(f"{operations / rate / _DAY:,.0f}", less),
        )


def step_operations(config: ConfigDict, vocab_size: int, mesh: jax.sharding.Mesh) -> float:
    """Floating-point operations of a step on all devices, if nothing were computed twice."""
    state = train_state.abstract_state(config, abstract_model(config, vocab_size), mesh)
    batch = abstract_batch(config, mesh)
    with jax.set_mesh(mesh):
        return mesh.size * train_state.useful_flops(config, vocab_size, state, batch)


def operations_per_second(devices: Sequence[sharding.Device]) -> float:
    """What devices do together at most: by their maker, else as a product of matrices on the first one shows.

    The devices of a CPU share its cores, so a host's are as fast as one.
    """
    if chip := chips.of(devices[0]):
        return len(devices) * chip.peak_flops / chip.cores
    several = len({device.process_index for device in devices}) if devices[0].platform == "cpu" else len(devices)
    here = next(device for device in devices if device.process_index == jax.process_index())
    dtype = jnp.float32 if here.platform == "cpu" else jnp.bfloat16
    matrix = jax.device_put(jnp.ones((_SIDE, _SIDE), dtype), here)
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    began = time.perf_counter()
    product(matrix, matrix).block_until_ready()
    return several * 2 * _SIDE**3 / (time.perf_counter() - began)


def measure_step(config: ConfigDict, size: int, devices: Sequence[sharding.Device]) -> float:
    """The seconds of a step with a vocabulary of `size` tokens, the median of three."""
    config = config.copy_and_resolve_references()
    config.train.init_from = ""  # whatever the parameters are, they take as long
    mesh, model = make_mesh(config, devices), abstract_model(config, size)
    like = train_state.abstract_state(config, model, mesh)
    state = initial_parameters.initial_state(config, size, like)
    batch = jax.tree.map(
        lambda leaf: sharding.place(np.ones(leaf.shape, leaf.dtype), leaf.sharding),
        abstract_batch(config, mesh),
    )
    seconds = []
    with jax.set_mesh(mesh):
        step = train_state.make_step(config, model)
        for _ in range(_CALLS + 1):
            began = time.perf_counter()
            state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])
