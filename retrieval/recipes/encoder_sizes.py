"""The sizes of a config's encoder, which models of several recipes have in common."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.errors import UserError, multiples
from retrieval.models import architecture, fused_attention
from retrieval.models.architecture import Architecture
from retrieval.models.encoders.family import FAMILIES
from retrieval.models.transformer_config import remat_for


def longest_text(config: ConfigDict) -> int:
    """The most tokens that a text has, query or document."""
    return max(config.data.query_length, config.data.document_length)


def position_count(config: ConfigDict) -> int:
    """The positions of the encoder: those of the longest text, or more where a later run has longer ones."""
    return max(longest_text(config), config.model.positions)


def size_fields(config: ConfigDict) -> dict[str, Any]:
    """The fields on which it depends whether the parameters of one encoder suit another."""
    names = ["encoder", "hidden_size", "mlp_size"]
    if config.model.encoder == "transformer":
        names += ["num_layers", "num_heads", "type_vocab_size", "layer_norm_epsilon", "family", "switches"]
    return {f"model.{name}": config.model[name] for name in names}


_SAME = (
    *("num_layers", "hidden_size", "num_heads", "mlp_size", "layer_norm_epsilon", "dropout", "attention_dropout"),
    *("attention", "dtype", "matmul_dtype", "unroll"),
)


def encoder_sizes(config: ConfigDict, vocab_size: int) -> dict[str, Any]:
    """The arguments of `TransformerConfig`; those of `_SAME` are fields of `config.model` by the same name."""
    model, switches = config.model, architecture_of(config.model)
    return {name: model[name] for name in _SAME} | dict(
        vocab_size=vocab_size,
        max_length=position_count(config),
        type_vocab_size=model.type_vocab_size if switches.token_types else 1,
        architecture=switches,
        remat=remat_for(model.remat, model.num_layers, model.hidden_size),
        lora_scale=adapter_scale(config),
        lora_dropout=config.train.lora.dropout,
    )


def adapter_scale(config: ConfigDict) -> float:
    """What the product of an adapter is multiplied by."""
    fields = config.train.lora
    return fields.alpha / fields.rank if fields.rank else 0.0


def architecture_of(model: ConfigDict) -> Architecture:
    """The architecture that the group `model` of a config has for its encoder."""
    family = FAMILIES.find(model.family, "config.model.family")
    return architecture.with_switches(family.architecture, model.switches)


def head_size(model: ConfigDict) -> int:
    """The size of a head's vectors of the encoder that the group `model` of a config has."""
    return architecture_of(model).head_size or model.hidden_size // model.num_heads


def check_encoder(model: ConfigDict) -> None:
    """Checks the sizes and switches of an encoder.

    Raises:
      UserError: its heads do not divide its size, a switch is unknown, or no kernel computes its attention, which is to
        be fused.
    """
    if model.encoder != "transformer":
        return
    architecture = architecture_of(model)
    if model.hidden_size % model.num_heads and not architecture.head_size:
        what = f"config.model.hidden_size={model.hidden_size} is not a multiple of num_heads={model.num_heads}"
        raise UserError(f"{what}: take {multiples(model.hidden_size, model.num_heads)}")
    rate = model.dropout if model.attention_dropout == -1 else model.attention_dropout
    fused_attention.check(model.attention, model.dtype, head_size(model), rate, architecture.relative_bias)


def check_sees_all(model: ConfigDict, why: str) -> None:
    """Checks that tokens of an encoder see those behind them; `why` they have to, for the error."""
    if model.encoder == "transformer" and architecture_of(model).causal:
        raise UserError(f"config.model.family={model.family}: its tokens see none behind them, and {why}")


def take_positions(model: nnx.Module, count: int) -> None:
    """Leaves of every table of positions of a model the first ones, as a model of shorter texts has them."""
    tables = {
        path: jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[:count]), table)  # whole, whatever its sharding
        for path, table in nnx.to_flat_state(nnx.state(model, nnx.Param))
        if "position_embedding" in path
    }
    nnx.update(model, nnx.from_flat_state(tables))
