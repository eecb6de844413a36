"""Matryoshka (Kusupati et al. 2022) for any loss of two towers: the sum of the losses of the first dimensions of all
embeddings, given length 1 again, once for each of some sizes.

The in-batch softmax has a form of its own, at the cost of one size.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from retrieval.common.errors import UserError

SIZES = "train.matryoshka"

_Loss = Callable[[jax.Array, jax.Array, Mapping[str, jax.Array]], Any]


def of_sizes(loss: _Loss, sizes: tuple[int, ...]) -> _Loss:
    """A loss of queries [B, E] and documents [B, K, E] as one of several sizes; its metrics are those of the last."""

    def summed(query_BE: jax.Array, document_BKE: jax.Array, batch: Mapping[str, jax.Array]) -> Any:
        total_B, metrics = jnp.zeros(()), {}
        for size in sizes:
            loss_B, metrics = loss(_beginning(query_BE, size), _beginning(document_BKE, size), batch)
            total_B += loss_B
        return total_B, metrics

    return summed


def _beginning(embedding_XE: jax.Array, size: int) -> jax.Array:
    beginning_XD = embedding_XE[..., :size].astype(jnp.float32)
    squares_X1 = jnp.square(beginning_XD).sum(axis=-1, keepdims=True)
    return beginning_XD / jnp.sqrt(jnp.maximum(squares_X1, 1e-24))


def check_sizes(sizes: tuple[int, ...], size: int) -> None:
    """Checks that the sizes, if any, ascend to that of the embeddings."""
    if sizes and (sizes[-1] != size or any(a >= b for a, b in zip((0, *sizes), sizes))):
        smaller = f", or set config.model.truncate_dim={sizes[-1]}" if sizes[-1] < size else ""
        raise UserError(
            f"config.{SIZES}={sizes}: sizes must ascend, from 1 on, to all {size} dimensions of embeddings: end with "
            f"{size}{smaller}"
        )
