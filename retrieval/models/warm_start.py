"""A model that starts from the encoder of another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, traverse_util

from retrieval.common.errors import UserError

if TYPE_CHECKING:
    from retrieval.models.transformer import Transformer

_SHOWN = 3  # differences that an error lists


def replace_parameters(model: nnx.Module, others: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Gives a model other parameters, which are a function of its own ones."""
    state = nnx.state(model, nnx.Param)
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, others(nnx.to_pure_dict(state))))
    nnx.update(model, state)


def copy_encoder(encoder: Transformer, into: Transformer, name: str) -> None:
    """Gives a model's encoder a copy of a pre-trained one's parameters.

    Where it has fewer positions than the pre-trained one, it gets the first of them.

    Args:
      name: of the model that gets them, for errors.

    Raises:
      UserError: parameters differ in name or shape, or the same parameters would mean something else; the message
        lists what.
    """
    source, own = (nnx.to_pure_dict(nnx.state(model, nnx.Param)) for model in (encoder, into))
    if positions := source.get("position_embedding"):
        positions["embedding"] = positions["embedding"][: into.config.max_length]
    theirs, needed = _described(encoder, source), _described(into, own)
    differences = [
        f"{path}: {theirs.get(path, 'missing')}, needed {needed.get(path, 'nothing')}"
        for path in sorted(needed.keys() | theirs.keys(), key=lambda path: ("layers/" in path, path))
        if needed.get(path) != theirs.get(path)
    ]
    if differences:
        more = f"\nand {len(differences) - _SHOWN} more" if differences[_SHOWN:] else ""
        shown = "\n  ".join(differences[:_SHOWN]) + more
        raise UserError(f"the pre-trained encoder does not fit {name}, take one of the same sizes; it has\n  {shown}")
    # Copies of the arrays too: a training step that donates its parameters may not be given one buffer twice.
    replace_parameters(into, lambda _: jax.tree.map(jnp.copy, source))


def encoder_of(trained: Any) -> Any:
    """The encoder of a trained model: of two towers, that of the documents."""
    tower = getattr(trained, "document_tower", getattr(trained, "query_tower", trained))
    return tower.encoder


def copy_parameters(source: nnx.Module, target: nnx.Module, shared: bool = False) -> None:
    """Copies parameters from a model to another one.

    Args:
      shared: copy those that both have. Otherwise both must have the same.

    Raises:
      UserError: the parameters have other names or shapes.
    """
    wanted, theirs = (dict(nnx.to_flat_state(nnx.state(model, nnx.Param))) for model in (target, source))
    if shared:
        both = wanted.keys() & theirs.keys()
        wanted, theirs = ({path: value[path] for path in both} for value in (wanted, theirs))
    if {path: value.shape for path, value in wanted.items()} != {path: value.shape for path, value in theirs.items()}:
        raise UserError("a model of other sizes or another kind")
    nnx.update(target, nnx.from_flat_state({path: jax.tree.map(jax.numpy.copy, v) for path, v in theirs.items()}))


def _described(encoder: Transformer, params: Mapping[str, Any]) -> dict[str, Any]:
    """The shapes of parameters, and what those of the same shapes may be used for in other ways."""
    config = encoder.config
    flat: dict[str, Any] = traverse_util.flatten_dict(params, sep="/")
    meaning = {name: getattr(config, name) for name in ("num_heads", "layer_norm_epsilon")}
    return {path: np.shape(leaf) for path, leaf in flat.items()} | meaning | dataclasses.asdict(config.architecture)
