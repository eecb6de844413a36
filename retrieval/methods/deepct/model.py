"""DeepCT (Dai & Callan 2019): an encoder and a linear unit that weighs every token of a passage."""

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.models.dropout import dropout, split
from retrieval.models.text import Text
from retrieval.models.transformer import INIT, Transformer, TransformerConfig


class DeepCT(nnx.Module):
    """Token ids to one number per token. Only that of a word's first piece is trained and means something."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.encoder = Transformer(config, rngs=rngs)
        self.weight = nnx.Linear(config.hidden_size, 1, kernel_init=INIT, rngs=rngs)

    def __call__(self, text: Text, dropout_key: jax.Array | None) -> jax.Array:
        """Weights, float32 [R, L]; about 0 to 1, and below 0 too."""
        encoder_key, key = split(dropout_key, 2)
        hidden_RLH = self.encoder(text, dropout_key=encoder_key).astype(jnp.float32)
        return self.weight(dropout(hidden_RLH, self.encoder.config.dropout, key))[:, :, 0]
