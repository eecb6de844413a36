"""A model's parameters as trees of arrays, and where a config puts them on its devices."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from retrieval.models import fused_attention, lora
from retrieval.models.layer_loop import gathered
from retrieval.recipes.encoder_sizes import head_size
from retrieval.training import sharding


def make_mesh(config: ConfigDict, devices: Sequence[sharding.Device] | None = None) -> jax.sharding.Mesh:
    """The config's mesh, of all devices or of those given.

    Raises:
      UserError: `mesh.fsdp` does not divide the devices, or they have no kernel for attention that is to be fused.
    """
    mesh = sharding.make_mesh(config.mesh.fsdp, devices)
    fused_attention.check_device(config.model.attention, mesh.devices.flat[0], head_size(config.model))
    return mesh


def local_mesh(config: ConfigDict, devices: Sequence[sharding.Device] | None = None) -> jax.sharding.Mesh:
    """That of one host's devices alone: this one's, or those given."""
    return sharding.local_mesh(config.mesh.fsdp, devices)


def parameters_of(model: nnx.Module) -> dict[str, Any]:
    """A model's parameters as nested dicts of arrays: what is trained and saved."""
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def shardings_of(params: Any, config: ConfigDict, mesh: jax.sharding.Mesh) -> Any:
    """Where the config puts each parameter on the mesh, a tree of shardings."""
    of = {"is_stacked": is_stacked, "is_table": is_table}
    return sharding.parameter_shardings(params, mesh, replicate_below=config.mesh.replicate_below, **of)


@dataclasses.dataclass(frozen=True)
class Bound:
    """A pure function from parameters (as `parameters_of` gives them) to the model that has them.

    Those of adapters make layers with adapters. Functions of models that are built alike are equal.
    """

    graphdef: nnx.GraphDef
    state: Any = dataclasses.field(compare=False)

    def __call__(self, params: Any) -> Any:
        bound, (others, adapters) = jax.tree.map(lambda leaf: leaf, self.state), lora.divide(params)
        nnx.replace_by_pure_dict(bound, others)
        made = nnx.merge(self.graphdef, bound)
        lora.attach(made, adapters)
        return made


def bind(model: nnx.Module) -> Bound:
    """The function that gives a model other parameters. It keeps the shapes of the model's own alone."""
    graphdef, state = nnx.split(model, nnx.Param)
    return Bound(graphdef, jax.eval_shape(lambda params: params, state))


def gather(params: Any) -> Any:
    """Makes parameters that are sharded over devices whole, except for those of layers: each layer gathers its own.

    A table of tokens whose columns are sharded stays so, too: it is the largest of all, and `text.lookup` takes it so.
    """

    def made_whole(path: tuple, leaf: jax.Array) -> jax.Array:
        is_by_column = is_table(path) and not any(jax.typeof(leaf).sharding.spec[:1])
        return leaf if is_stacked(path) or is_by_column else gathered(leaf)

    return jax.tree.map_with_path(made_whole, params)


def is_stacked(path: tuple) -> bool:
    """Whether the parameter at a path is one of the Transformer's layers, which have a leading axis."""
    return any(key.key == "layers" for key in path)


def is_table(path: tuple) -> bool:
    """Whether the parameter at a path is the embeddings of a vocabulary's tokens."""
    return any(key.key == "token_embedding" for key in path)
