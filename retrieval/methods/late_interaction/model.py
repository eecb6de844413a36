"""The model of late interaction: an encoder, and a linear layer from every token's hidden state to a short vector.

Shapes have the letters of `models/text.py`.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.common.runtime.arrays import reshape_rows
from retrieval.methods.late_interaction.token_masks import EXPANSION
from retrieval.models.text import Text, by_group
from retrieval.models.transformer import INIT, Transformer
from retrieval.models.transformer_config import TransformerConfig
from retrieval.recipes.batch_texts import embed
from retrieval.training.loss_kind import Batch


class LateInteraction(nnx.Module):
    """A Transformer and a linear layer without a bias; every token's vector has length 1."""

    def __init__(self, config: TransformerConfig, size: int, *, rngs: nnx.Rngs):
        """Makes one with random weights, and vectors of a size."""
        self.encoder = Transformer(config, rngs=rngs)
        self.projection = nnx.Linear(config.hidden_size, size, use_bias=False, kernel_init=INIT, rngs=rngs)

    def __call__(self, text: Text, dropout_key: jax.Array | None = None) -> jax.Array:
        """The vectors of all tokens, float32 [R, L, E]; those of padding mean nothing."""
        hidden_RLH = self.encoder(text, dropout_key=dropout_key).astype(jnp.float32)
        vector_RLE = self.projection(hidden_RLH)
        # The small number inside the root: a zero vector stays zero, and so does its gradient.
        return vector_RLE * jax.lax.rsqrt(jnp.square(vector_RLE).sum(axis=-1, keepdims=True) + 1e-12)

    encode_query = encode_document = __call__


def with_mask(text: Text, mask_RL: jax.Array, unattended: bool) -> Text:
    """The text whose tokens do not attend to those of query expansion, where these are `unattended`."""
    return dataclasses.replace(text, unattended_RL=(mask_RL == EXPANSION).astype(jnp.int32)) if unattended else text


def unpacked(vector_RLE: jax.Array, text: Text, length: int) -> jax.Array:
    """The vectors of packed texts, a text per row, [B, length, E]; those behind a text's end mean nothing."""
    if text.starts_GC is None:
        return vector_RLE
    vector_GTE = by_group(vector_RLE, len(text.starts_GC))
    place_GCL = jnp.minimum(text.starts_GC[:, :, None] + jnp.arange(length), vector_GTE.shape[1] - 1)
    place_GX1 = reshape_rows(place_GCL, len(place_GCL), -1, 1)
    return reshape_rows(jnp.take_along_axis(vector_GTE, place_GX1, axis=1), -1, length, vector_RLE.shape[-1])


def token_vectors(
    model: LateInteraction, batch: Batch, side: str, key: jax.Array | None, chunk_size: int, unattended: bool = False
) -> jax.Array:
    """The vectors of all texts of one side of a batch, [B * K, L, E], in chunks of whole groups (`batch_texts.embed`).

    Args:
      unattended: whether no token attends to those of query expansion.
    """
    length = batch[f"{side}_mask"].shape[-1]

    def encode(text: Text, key: jax.Array | None, *mask: jax.Array) -> jax.Array:
        text = with_mask(text, mask[0], unattended) if mask else text
        return unpacked(model(text, key), text, length)

    return embed(encode, batch, side, key, chunk_size, *(("_mask",) if unattended else ()))
