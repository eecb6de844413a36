"""One layer after the other, as one module and one loop over its parameters, which have a leading axis.

So a model of any depth compiles as fast as a model of one layer.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from retrieval.models import lora
from retrieval.models.transformer_config import REMAT, TransformerConfig


def stack(layers: list[nnx.Module]) -> nnx.Module:
    """One module for all: its parameters have a leading axis, of layers."""
    graphdefs, states = zip(*map(nnx.split, layers))
    return nnx.merge(graphdefs[0], jax.tree.map(lambda *layers: jnp.stack(layers), *states))


def through_layers(
    layers: nnx.Module,
    config: TransformerConfig,
    x_RLH: Any,
    keys: jax.Array | list[None],
    *calls: Callable[[Any, Any, jax.Array, Any], Any],
) -> Any:
    """`x = call(layer, x, number, key)` for one layer after the other, of those that `stack` made one module.

    Args:
      x_RLH: hidden states, or a tree with what else goes from layer to layer.
      keys: of dropout, one for each layer.
      calls: one for every layer, or as many as the layers have kinds, which alternate.
    """
    graphdef, params = nnx.split(layers)
    kinds = len(calls)
    periods = config.num_layers // kinds

    def step(call: Callable) -> Callable:
        def through_layer(x_RLH: Any, of_layer: tuple) -> Any:
            params, number, key = of_layer
            params = jax.tree.map(lambda leaf: gathered(leaf, config.dtype), params)
            layer = nnx.merge(graphdef, params)
            lora.set_dropout(layer, config.lora_dropout, key)
            return call(layer, x_RLH, number, key)

        # Inside a loop nothing can be merged with the backward pass, which CSE prevention is there to prevent.
        return jax.checkpoint(through_layer, policy=_kept(config.remat), prevent_cse=False)

    steps = list(map(step, calls))

    def period(x_RLH: Any, of_layers: tuple) -> tuple[Any, None]:
        for place, through_layer in enumerate(steps):
            own = of_layers if kinds == 1 else jax.tree.map(operator.itemgetter(place), of_layers)
            x_RLH = through_layer(x_RLH, own)
        return x_RLH, None

    def loop(x_RLH: Any, of_layers: tuple, periods: int) -> Any:
        # The loop has to stay one: unrolled whole, the compiler would keep what is to be computed again.
        most = periods if config.remat == "none" else max(1, periods // 2)
        unroll = config.unroll or (4 if config.remat == "none" else 1)
        return jax.lax.scan(period, x_RLH, of_layers, unroll=min(unroll, most))[0]

    of_layers = (params, jnp.arange(config.num_layers), None if keys[0] is None else keys)
    if kinds == 1:
        return loop(x_RLH, of_layers, periods)
    if periods:
        whole = jax.tree.map(lambda x: x[: periods * kinds].reshape(periods, kinds, *x.shape[1:]), of_layers)
        x_RLH = loop(x_RLH, whole, periods)
    steps = steps[: config.num_layers % kinds]  # the layers of a last period that is not whole
    rest = jax.tree.map(lambda leaf: leaf[periods * kinds :][None], of_layers)
    return loop(x_RLH, rest, 1) if steps else x_RLH


def gathered(x: jax.Array, matrix_dtype: Any = "float32") -> jax.Array:
    """A parameter as every device needs it to compute. A sharded one is gathered, others stay as they are.

    Matrices travel in the type that they are multiplied in. The gradient comes back sharded as the parameter is.
    """
    is_sharded = any(axis is not None for axis in jax.typeof(x).sharding.spec)
    return jax.reshard(x.astype(matrix_dtype) if x.ndim > 1 else x, P()) if is_sharded else x


def _kept(remat: str) -> Callable[..., bool]:
    return lambda primitive, *args, **settings: (
        primitive.name != "reshard" and REMAT[remat](primitive, *args, **settings)
    )
