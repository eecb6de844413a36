"""BERT's masked language model (Devlin et al. 2019): the encoder and a head that predicts the masked tokens.

Letters of shapes beside those of `text`: P masked positions of a group, V vocabulary.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.models.gelu import gelu
from retrieval.models.text import Text, by_group
from retrieval.models.transformer import Transformer, dense, norm, token_logits
from retrieval.models.transformer_config import TransformerConfig


class MaskedLanguageModel(nnx.Module):
    """Transformer, dense, GELU, LayerNorm, and the token embeddings once more as output layer."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.encoder = Transformer(config, rngs=rngs)
        # A bias as the encoder's own matrices have one: ModernBERT's head has none, either.
        self.dense = dense(config.hidden_size, config.hidden_size, config, rngs, "output")
        self.norm = norm(config, config.hidden_size, rngs)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size))

    def __call__(self, text: Text, masked_positions_GP: jax.Array, dropout_key: jax.Array | None) -> jax.Array:
        """Logits of the tokens at the masked positions only, float32 [G, P, V]: the vocabulary is the dear part.

        Args:
          masked_positions_GP: offsets in the tokens of a group's rows, int32; a row is a group of its own where texts
            are not packed. Groups with fewer masked tokens repeat any position, with weight 0 in the loss.
        """
        return self.predict(self.encoder(text, dropout_key=dropout_key), masked_positions_GP)

    def predict(self, hidden_RLH: jax.Array, masked_positions_GP: jax.Array) -> jax.Array:
        """The same from the encoder's hidden states."""
        hidden_GTH = by_group(hidden_RLH, len(masked_positions_GP))
        hidden_GPH = jnp.take_along_axis(hidden_GTH, masked_positions_GP[:, :, None], axis=1)
        return self.scores(self.transformed(hidden_GPH))

    def transformed(self, hidden_RLH: jax.Array) -> jax.Array:
        """What the output layer takes of hidden states, of their shape and type."""
        return self.norm(gelu(self.dense(hidden_RLH))).astype(hidden_RLH.dtype)

    def scores(self, hidden_RLH: jax.Array, bias: bool = True) -> jax.Array:
        """Logits of all tokens, float32 [R, L, V]: the output layer, the token embedding and a bias or none."""
        logits_RLV = token_logits(hidden_RLH, self.encoder.token_embedding.embedding[...])
        return logits_RLV + self.bias[...] if bias else logits_RLV
