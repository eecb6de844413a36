"""Token ids as the encoders take them: one text per row, or several packed in a row.

Letters of shapes in this room: R rows, L tokens of a row, B texts, H hidden size, E embedding size.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Text:
    """A batch of texts; every array is int32.

    Attributes:
      ids_RL: token ids.
      types_RL: BERT's token types (0 for the first segment of a pair, 1 for the second).
      segments_RL: which text of its row a token belongs to: 1, 2, ... and 0 for padding. Texts do not see each other.
      positions_RL: the place of a token in its text: 0, 1, ... from the text's first token on.
      starts_B: where text b begins, as `row * L + offset`; None where row b holds text b alone, from offset 0 on.
    """

    ids_RL: jax.Array
    types_RL: jax.Array
    segments_RL: jax.Array
    positions_RL: jax.Array
    starts_B: jax.Array | None = None

    @classmethod
    def from_ids(cls, ids_BL: jax.Array, types_BL: jax.Array) -> "Text":
        """One text per row, from the row's first token on; id 0 is padding."""
        positions_BL = jnp.zeros_like(ids_BL) + jnp.arange(ids_BL.shape[1], dtype=ids_BL.dtype)
        return cls(ids_BL, types_BL, (ids_BL != 0).astype(ids_BL.dtype), positions_BL)


def lookup(table_VH: jax.Array, index: jax.Array) -> jax.Array:
    """Rows of a table, [..., H], sharded as `index` is; NaN for an index that is not in the table.

    Under Explicit mesh axes a gather must be told its output sharding; without a mesh the sharding is empty.
    """
    sharding = jax.typeof(index).sharding
    out = NamedSharding(sharding.mesh, P(*sharding.spec, None))
    return table_VH.at[index].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False, out_sharding=out)


def first(x_RLH: jax.Array, text: Text) -> jax.Array:
    """The vector at each text's first token ([CLS]), [B, H].

    Packed texts may lie in another device's rows: what then travels between the devices is [B, H].
    """
    if text.starts_B is None:
        return x_RLH[:, 0]
    return lookup(x_RLH.reshape(-1, x_RLH.shape[-1]), text.starts_B)


def mean(x_RLH: jax.Array, text: Text) -> jax.Array:
    """The mean over each text's tokens, [CLS] and [SEP] among them; float32 [B, H], zero for a row of padding."""
    x_RLH = x_RLH.astype(jnp.float32)
    if text.starts_B is None:
        weight_RL = (text.segments_RL != 0).astype(jnp.float32)
        total_RH = jnp.einsum("rl,rlh->rh", weight_RL, x_RLH)
        return total_RH / jnp.maximum(weight_RL.sum(axis=1), 1)[:, None]
    # The mean of its own text at every token, as one more attention product: no scatter, and texts stay in their rows.
    same_RLL = same_text(text).astype(jnp.float32)
    mean_RLH = jnp.einsum("rlm,rmh->rlh", same_RLL / same_RLL.sum(axis=2, keepdims=True), x_RLH)
    return first(mean_RLH, text)


def same_text(text: Text) -> jax.Array:
    """Whether two tokens of a row belong to the same text, bool [R, L, L]. Padding belongs with padding."""
    return text.segments_RL[:, :, None] == text.segments_RL[:, None, :]
