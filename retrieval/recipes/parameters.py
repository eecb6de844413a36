"""A model's parameters as trees of arrays, and where a config puts them on its devices."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.models import fused_attention, lora
from retrieval.models.layer_loop import gathered
from retrieval.recipes.encoder_sizes import architecture_of, head_size
from retrieval.training import sharding


def make_mesh(config: ConfigDict, devices: Sequence[sharding.Device] | None = None) -> jax.sharding.Mesh:
    """The config's mesh, of all devices or of those given.

    Raises:
      UserError: `mesh.fsdp` does not divide the devices, or they have no kernel for attention that is to be fused.
    """
    mesh = sharding.make_mesh(config.mesh.fsdp, devices, config.mesh.tensor)
    _check_tensor(config)
    fused_attention.check_device(config.model.attention, mesh.devices.flat[0], head_size(config.model))
    return mesh


def local_mesh(config: ConfigDict, devices: Sequence[sharding.Device] | None = None) -> jax.sharding.Mesh:
    """That of one host's devices alone: this one's, or those given."""
    return sharding.local_mesh(config.mesh.fsdp, devices, config.mesh.tensor)


def parameters_of(model: nnx.Module) -> dict[str, Any]:
    """A model's parameters as nested dicts of arrays: what is trained and saved."""
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def shardings_of(params: Any, config: ConfigDict, mesh: jax.sharding.Mesh) -> Any:
    """Where the config puts each parameter on the mesh, a tree of shardings."""
    of = {"is_stacked": is_stacked, "is_table": is_table, "tensor_axis": tensor_axis}
    return sharding.parameter_shardings(params, mesh, replicate_below=config.mesh.replicate_below, **of)


def bind(model: nnx.Module) -> Callable[[Any], Any]:
    """A pure function from parameters (as `parameters_of` gives them) to the model that has them.

    Those of adapters make layers with adapters.
    """
    graphdef, state = nnx.split(model, nnx.Param)

    def with_parameters(params: Any) -> nnx.Module:
        bound, (others, adapters) = jax.tree.map(lambda leaf: leaf, state), lora.divide(params)
        nnx.replace_by_pure_dict(bound, others)
        made = nnx.merge(graphdef, bound)
        lora.attach(made, adapters)
        return made

    return with_parameters


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


def tensor_axis(path: tuple) -> int | None:
    """The axis of a layer's matrix that `mesh.tensor` devices share: each has some heads, and some of the MLP.

    Of an adapter it is the axis that it has in common with its matrix.
    """
    names = [key.key for key in path]
    if not is_stacked(path):
        return None
    if names[-1] in ("kernel", lora.B) and names[-2] in _FROM_ALL:
        return -1
    return -2 if names[-1] in ("kernel", lora.A) and names[-2] in _TO_ALL else None


_FROM_ALL, _TO_ALL = ("query", "key", "value", "mlp_in", "mlp_gate"), ("output", "mlp_out")


def _check_tensor(config: ConfigDict) -> None:
    tensor, model = config.mesh.tensor, config.model
    if tensor == 1:
        return
    rate = model.dropout if model.attention_dropout == -1 else model.attention_dropout
    if model.encoder != "transformer" or rate or config.train.lora.dropout:
        way = "set config.model.attention_dropout=0 and config.train.lora.dropout=0"
        raise UserError(f"config.mesh.tensor={tensor} takes a transformer without such dropout: {way}")
    kv_heads = architecture_of(model).kv_heads or model.num_heads
    for name, size in (("num_heads", model.num_heads), ("kv_heads", kv_heads), ("mlp_size", model.mlp_size)):
        if size % tensor:
            raise UserError(f"config.mesh.tensor={tensor} does not divide the encoder's {name}, which is {size}")
