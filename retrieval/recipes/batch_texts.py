"""The texts of a batch, as models take them: packed, or one per row."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from retrieval.common.runtime.arrays import reshape_rows
from retrieval.common.runtime.filler import FILLER
from retrieval.models.text import Text
from retrieval.training.chunks import in_chunks


def embed(
    encode: Callable, batch: Mapping[str, jax.Array], side: str, key: Any, chunk_size: int, *more: str
) -> jax.Array:
    """What is made of all texts of one side of a batch, such as embeddings [B * K, E], in chunks of whole groups.

    A group is what a lane packs; texts that are not packed are a group for every example. `recipe.check_chunks` says
    which chunks are whole groups.

    Args:
      encode: of texts, a key, and the fields of the side whose names end in `more`.
    """
    parts = ("", "_types", "_segments", "_positions", "_starts", *more)
    fields = {side + part: batch[side + part] for part in parts if side + part in batch}
    group_size = len(batch["document_id"]) // len(batch[side])

    def embed_groups(fields: Mapping[str, jax.Array], key: jax.Array | None) -> jax.Array:
        made_B = encode(text_of(fields, side), key, *(fields[side + part] for part in more))
        return reshape_rows(made_B, len(fields[side]), -1, *made_B.shape[1:])

    made_GC = in_chunks(embed_groups, fields, key, chunk_size // group_size)
    return reshape_rows(made_GC, -1, *made_GC.shape[2:])


def text_of(fields: Mapping[str, jax.Array], name: str) -> Text:
    """The texts of a field, packed or one per row."""
    ids = fields[name]
    types = fields.get(f"{name}_types", jnp.zeros_like(ids))
    if f"{name}_starts" not in fields:
        return Text.from_ids(*(reshape_rows(x, -1, x.shape[-1]) for x in (ids, types)))
    return Text.from_groups(ids, types, *(fields[f"{name}_{part}"] for part in ("segments", "positions", "starts")))


def text_count(batch: Mapping[str, jax.Array]) -> int:
    """The masked texts of a batch, packed or not."""
    return batch["text_starts"].size if "text_starts" in batch else len(batch["text"])


def for_every_text(values: Any, batch: Mapping[str, jax.Array]) -> Any:
    """What a group of packed texts has on average, for each of its texts: the mean over the batch stays the same."""
    C = text_count(batch) // len(batch["text"])
    return jax.tree.map(lambda x_G: reshape_rows(x_G[:, None] + jnp.zeros(C), -1), values)


def token_count(ids: jax.Array, examples: int) -> jax.Array:
    """The tokens of an example without padding, for every group of packed ones their mean, [G]."""
    return (ids != FILLER).sum(axis=range(1, ids.ndim)) * (len(ids) / examples)
