"""What is minimised where labelled pairs have several sources."""

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from retrieval.data.labelled import sources
from retrieval.recipes.recipe import recipe_of
from retrieval.training.loop import Objective

SHARE, LOSS = "examples", "loss"  # metrics of a source are called so, a slash, and its name


def key_of(config: ConfigDict) -> Hashable:
    """What tells apart the objectives of sources, by the config that a source has of its own."""
    return tuple(config.train[field.rpartition(".")[2]] for field in sources.LOSS_KEYS.values())


def objective(config: ConfigDict, bound: Callable[[Any], Any]) -> Objective:
    """`Recipe.objective`; of several sources, each batch's own, with share and loss of each among the metrics."""
    configs = sources.configs_of(config)
    if not configs:
        return recipe_of(config).objective(bound)
    objectives = {key_of(own): recipe_of(own).objective(bound) for own in configs.values()}

    def of_batch(params: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        loss_B, metrics = objectives[batch.objective](params, batch, key)
        for number, name in enumerate(configs):
            is_its_B = (batch["source"][:, 0] == number).astype(jnp.float32)
            metrics |= {f"{SHARE}/{name}": is_its_B, f"{LOSS}/{name}": is_its_B * loss_B}
        return loss_B, metrics

    return of_batch
