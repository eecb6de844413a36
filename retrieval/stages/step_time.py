"""How long a train step takes on the devices at hand: it is run on parameters and batches of no meaning."""

import statistics
import time
from collections.abc import Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval.recipes import examples, initial_parameters, train_state
from retrieval.recipes.placement import make_mesh
from retrieval.recipes.recipe import abstract_model
from retrieval.training import sharding

_CALLS = 3  # after a first one, which is compiled


def measure(config: ConfigDict, size: int, devices: Sequence[sharding.Device]) -> float:
    """The seconds of a step with a vocabulary of `size` tokens, the median of three."""
    config = config.copy_and_resolve_references()
    config.train.init_from = ""  # whatever the parameters are, they take as long
    mesh, model = make_mesh(config, devices), abstract_model(config, size)
    like = train_state.abstract_state(config, model, mesh)
    state = initial_parameters.initial_state(config, size, like)
    batch = jax.tree.map(
        lambda leaf: sharding.place(np.ones(leaf.shape, leaf.dtype), leaf.sharding),
        examples.abstract_batch(config, mesh),
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
