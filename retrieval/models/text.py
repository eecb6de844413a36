"""Token ids as the encoders take them: one text per row, or several packed in a row.

Letters of shapes in this room: R rows, L tokens of a row, B texts, G groups of packed rows, C texts of a group
(B = G * C), T tokens of a group's rows, H hidden size, E embedding size.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from retrieval.common.runtime.arrays import reshape_rows
from retrieval.common.runtime.filler import FILLER


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Text:
    """A batch of texts; every array is int32.

    Packed rows come in groups of R / G rows, and a group's texts lie in its own rows. So a device that has whole groups
    needs nothing of the others.

    Attributes:
      ids_RL: token ids, and `FILLER` where no token is.
      types_RL: BERT's token types (0 for the first segment of a pair, 1 for the second).
      segments_RL: which text of its group a token belongs to: 1, 2, ..., C and 0 for padding. Texts do not see each
        other. A text that is not packed is a group of its own.
      positions_RL: the place of a token in its text: 0, 1, ... from the text's first token on.
      starts_GC: where in its group a text begins, as `row * L + offset`; None where row b holds text b alone, from
        offset 0 on.
      unattended_RL: 1 for a token that attends and that none attends to, not even itself, as those that fill up a
        query of ColBERT; None where there is none.
    """

    ids_RL: jax.Array
    types_RL: jax.Array
    segments_RL: jax.Array
    positions_RL: jax.Array
    starts_GC: jax.Array | None = None
    unattended_RL: jax.Array | None = None

    @classmethod
    def from_ids(cls, ids_BL: jax.Array, types_BL: jax.Array) -> "Text":
        """One text per row, from the row's first token on; padding is `FILLER`."""
        positions_BL = jnp.zeros_like(ids_BL) + jnp.arange(ids_BL.shape[1], dtype=ids_BL.dtype)
        return cls(ids_BL, types_BL, (ids_BL != FILLER).astype(ids_BL.dtype), positions_BL)

    @classmethod
    def from_groups(
        cls, ids: jax.Array, types: jax.Array, segments: jax.Array, positions: jax.Array, starts_GC: jax.Array
    ) -> "Text":
        """Packed texts, from arrays [G, R / G, L]."""
        return cls(*(reshape_rows(x, -1, x.shape[-1]) for x in (ids, types, segments, positions)), starts_GC=starts_GC)


def lookup(table_VH: jax.Array, index: jax.Array) -> jax.Array:
    """Rows of a table, float32 [..., H], sharded as `index` is; NaN for an index that is not in the table.

    A table whose columns are sharded stays so: each device looks up its own columns, for the rows of all devices that
    have the others, and then they exchange what they found. That is as many values as tokens have, not the table's.
    """
    sharding = jax.typeof(index).sharding
    columns = (*jax.typeof(table_VH).sharding.spec, None, None)[1]
    # Under Explicit mesh axes a gather must be told its output sharding; without a mesh the sharding is empty.
    out = NamedSharding(sharding.mesh, P(*sharding.spec, None))
    if columns is not None:
        rows = [_without(axes, columns) for axes in sharding.spec]
        index = jax.reshard(index, NamedSharding(sharding.mesh, P(*rows)))
        vectors = _rows(table_VH, index, NamedSharding(sharding.mesh, P(*rows, columns)))
        return jax.reshard(vectors, out).astype(jnp.float32)
    return _rows(table_VH, index, out).astype(jnp.float32)


def _rows(table_VH: jax.Array, index: jax.Array, out: NamedSharding) -> jax.Array:
    return table_VH.at[index].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False, out_sharding=out)


def _without(axes: Any, others: Any) -> tuple[str, ...]:
    """The axes of a mesh that a dimension is sharded over, without others."""
    names, left_out = ((a,) if isinstance(a, str) else a or () for a in (axes, others))
    return tuple(axis for axis in names if axis not in left_out)


def token_vectors(table_VH: jax.Array, ids: jax.Array) -> jax.Array:
    """The embeddings of token ids, [..., H]. Those of padding mean nothing: they are the first token's."""
    return lookup(table_VH, jnp.where(ids == FILLER, 0, ids))


def by_group(x_RL: jax.Array, groups: int) -> jax.Array:
    """[R, L, ...] to [G, T, ...]: the tokens of a group's rows, one row after the other."""
    R, L, *rest = x_RL.shape
    return reshape_rows(x_RL, groups, R // groups * L, *rest)


def same_text(text: Text) -> jax.Array:
    """Whether two tokens of a row belong to the same text, bool [R, L, L]. Padding belongs with padding."""
    return text.segments_RL[:, :, None] == text.segments_RL[:, None, :]


def position_vectors(table_LH: jax.Array, text: Text, padding_id: int) -> jax.Array:
    """The learned vectors of tokens' positions, [R, L, H].

    Args:
      padding_id: as `Architecture` has it, of tokens that are written in a text.
    """
    if padding_id < 0:
        return lookup(table_LH, text.positions_RL)
    place_L, is_padding_RL = jnp.arange(text.ids_RL.shape[1]), text.ids_RL == padding_id
    before_RL = (same_text(text) & is_padding_RL[:, None, :] & (place_L < place_L[:, None])).sum(axis=2)
    return jnp.where(is_padding_RL[:, :, None], 0, lookup(table_LH, text.positions_RL - before_RL))


def seen_tokens(
    segments_RL: jax.Array, causal: bool = False, window: int | None = None, unattended_RL: jax.Array | None = None
) -> jax.Array:
    """Whether each token sees each other one of its row, bool [R, L, L]; every token sees itself.

    The texts of a packed row lie in one piece, so distances in the row are those in the text.

    Args:
      causal: whether a token sees none behind it.
      window: how far before it a token sees, and behind it where it sees any; None: the whole text.
      unattended_RL: as `Text` has it. Such a token sees itself where it would see nothing.
    """
    place_L = jnp.arange(segments_RL.shape[1])
    distance_LM = place_L - place_L[:, None]
    seen_RLM = segments_RL[:, :, None] == segments_RL[:, None, :]
    if causal:
        seen_RLM &= distance_LM <= 0
    if window is not None:
        seen_RLM &= jnp.abs(distance_LM) <= window
    if unattended_RL is None:
        return seen_RLM
    seen_RLM &= unattended_RL[:, None, :] == 0
    return seen_RLM | (~seen_RLM.any(axis=2, keepdims=True) & (distance_LM == 0))
