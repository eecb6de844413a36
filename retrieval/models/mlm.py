"""BERT's masked language model (Devlin et al. 2019): the encoder and a head that predicts the masked tokens.

Letters of shapes beside those of `text`: P masked positions of a row, V vocabulary.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.models.text import Text
from retrieval.models.transformer import Transformer, TransformerConfig, dense, layer_norm


class MaskedLanguageModel(nnx.Module):
    """Transformer, dense, GELU, LayerNorm, and the token embeddings once more as output layer."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.encoder = Transformer(config, rngs=rngs)
        self.dense = dense(config.hidden_size, config.hidden_size, config, rngs)
        self.norm = layer_norm(config, rngs)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size))

    def __call__(self, text: Text, masked_positions_RP: jax.Array, dropout_key: jax.Array | None) -> jax.Array:
        """Logits of the tokens at the masked positions only, float32 [R, P, V]: the vocabulary is the dear part.

        Args:
          masked_positions_RP: offsets in the row, int32 in [0, L); rows with fewer masked tokens repeat any position,
            with weight 0 in the loss.
        """
        hidden_RLH = self.encoder(text, dropout_key=dropout_key)
        hidden_RPH = jnp.take_along_axis(hidden_RLH, masked_positions_RP[:, :, None], axis=1)
        hidden_RPH = self.norm(jax.nn.gelu(self.dense(hidden_RPH), approximate=False)).astype(hidden_RLH.dtype)
        table_VH = self.encoder.token_embedding.embedding[...].astype(hidden_RLH.dtype)
        logits_RPV = jnp.einsum("rph,vh->rpv", hidden_RPH, table_VH, preferred_element_type=jnp.float32)
        return logits_RPV + self.bias[...]
