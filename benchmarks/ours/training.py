"""Our train step, as the train stage makes it."""

from collections.abc import Callable, Mapping

import jax
from ml_collections import ConfigDict

from retrieval.stages import model as models
from retrieval.stages import train
from retrieval.training import loop, sharding


def make_step(config: ConfigDict, vocab_size: int, mesh: jax.sharding.Mesh) -> Callable[[Mapping], None]:
    """A function that trains on a batch, and returns when that is done."""
    model, tx = models.build(config, vocab_size), train.make_optimizer(config)
    step_fn = loop.make_step(models.objective(config, model), tx, config.seed)
    state = jax.device_put(loop.TrainState.create(models.parameters(model), tx), sharding.replicated(mesh))

    def step(batch: Mapping[str, jax.Array]) -> None:
        nonlocal state
        with jax.set_mesh(mesh):
            state, metrics = step_fn(state, batch)
            jax.block_until_ready(metrics)

    return step
