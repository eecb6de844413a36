"""Our train step, as the train stage makes it."""

from collections.abc import Callable, Mapping

import jax
from ml_collections import ConfigDict

from retrieval.stages import model as models
from retrieval.stages import starts, states


def make_step(config: ConfigDict, vocab_size: int, mesh: jax.sharding.Mesh) -> Callable[[Mapping], None]:
    """A function that trains on a batch, and returns when that is done."""
    model = models.abstract(config, vocab_size)
    step_fn = states.make_step(config, model)
    state = starts.initial_state(config, vocab_size, states.abstract_state(config, model, mesh))

    def step(batch: Mapping[str, jax.Array]) -> None:
        nonlocal state
        with jax.set_mesh(mesh):
            state, metrics = step_fn(state, batch)
            jax.block_until_ready(metrics)

    return step
