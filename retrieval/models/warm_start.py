"""A model that starts from the encoder of another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx, traverse_util

from retrieval.errors import UserError

if TYPE_CHECKING:
    from retrieval.models.transformer import Transformer

_SHOWN = 3  # differences that an error lists


def copy_encoder(encoder: Transformer, into: Transformer, name: str) -> None:
    """Gives a model's encoder a copy of a pre-trained one's parameters.

    Where it has fewer positions than the pre-trained one, it gets the first of them.

    Args:
      name: of the model that gets them, for errors.

    Raises:
      UserError: parameters differ in name or shape, or the same parameters would mean something else; the message
        lists what.
    """
    source, state = nnx.to_pure_dict(nnx.state(encoder, nnx.Param)), nnx.state(into, nnx.Param)
    if positions := source.get("position_embedding"):
        positions["embedding"] = positions["embedding"][: into.config.max_length]
    given, needed = (
        _shapes(params) | _meaning(of) for params, of in ((source, encoder), (nnx.to_pure_dict(state), into))
    )
    differences = [
        f"{path}: {given.get(path, 'missing')}, needed {needed.get(path, 'nothing')}"
        for path in sorted(needed.keys() | given.keys(), key=lambda path: ("layers/" in path, path))
        if needed.get(path) != given.get(path)
    ]
    if differences:
        more = f"\nand {len(differences) - _SHOWN} more" if differences[_SHOWN:] else ""
        shown = "\n  ".join(differences[:_SHOWN]) + more
        raise UserError(f"the pre-trained encoder does not fit {name}, take one of the same sizes; it has\n  {shown}")
    # Copies of the arrays too: a training step that donates its parameters may not be given one buffer twice.
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.copy, source))
    nnx.update(into, state)


def _shapes(params: Mapping[str, Any]) -> dict[str, Any]:
    leaves: dict[str, Any] = traverse_util.flatten_dict(params, sep="/")
    return {path: leaf.shape for path, leaf in leaves.items()}


def _meaning(encoder: Transformer) -> dict[str, Any]:
    """What parameters of the same shapes may be used for in other ways."""
    config = encoder.config
    epsilon, switches = config.layer_norm_epsilon, dataclasses.asdict(config.architecture)
    return {"num_heads": config.num_heads, "layer_norm_epsilon": epsilon, **switches}
