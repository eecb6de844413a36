"""SPLADE (Formal et al. 2021, v2; Lassance et al. 2024, v3): texts as sparse vectors over the vocabulary.

Shapes have the letters of `models/text.py`, and V vocabulary.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.methods.splade.activations import activations
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.text import Text
from retrieval.models.transformer import gathered
from retrieval.models.transformer_config import TransformerConfig

ENCODED, BY_IDF = "encoder", "idf"
QUERIES = (ENCODED, BY_IDF)


class Splade(MaskedLanguageModel):
    """A masked language model whose logits weigh tokens. One text a row: packed rows are not taken.

    With queries 'idf' a query needs no encoder: each of its tokens weighs what a table says, however often it is there
    (SPLADE-doc with weights; OpenSearch's inference-free models).

    Attributes:
      terms: the greatest weights that a vector keeps at most; 0 for all.
      normalize: whether vectors are compared by cosines.
    """

    terms, normalize = 0, False  # what published models may say

    def __init__(self, config: TransformerConfig, queries: str, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.queries = queries
        if queries == BY_IDF:
            self.idf = nnx.Param(jnp.zeros(config.vocab_size))

    def encode_query(self, text: Text, dropout_key: jax.Array | None = None) -> jax.Array:
        """Weights of all tokens, 0 or more, float32 [B, V]."""
        if self.queries == BY_IDF:
            return self._looked_up(text)
        return self._encode(text, None if dropout_key is None else jax.random.fold_in(dropout_key, 0))

    def encode_document(self, text: Text, dropout_key: jax.Array | None = None) -> jax.Array:
        """As `encode_query`, by the encoder in any case."""
        return self._encode(text, None if dropout_key is None else jax.random.fold_in(dropout_key, 1))

    def _encode(self, text: Text, key: jax.Array | None) -> jax.Array:
        hidden_BLH = self.transformed(self.encoder(text, dropout_key=key))
        table_VH = gathered(self.encoder.token_embedding.embedding[...], hidden_BLH.dtype).astype(hidden_BLH.dtype)
        return activations(hidden_BLH, text.segments_RL > 0, table_VH, self.bias[...])

    def _looked_up(self, text: Text) -> jax.Array:
        """The table's weight of each token of a text; special tokens have none there."""
        weight_V = jax.nn.relu(self.idf[...])
        is_there_BV = _present(text, len(weight_V))
        return jnp.where(is_there_BV, weight_V, 0)


def _present(text: Text, size: int) -> jax.Array:
    """Whether a text has each token of the vocabulary, bool [B, V]; a place of a row at a time."""
    vocabulary_V = jnp.arange(size)

    def add(is_there_BV: jax.Array, ids_B: jax.Array) -> tuple[jax.Array, None]:
        return is_there_BV | (ids_B[:, None] == vocabulary_V), None

    start = (text.ids_RL[:, :1] * 0 + vocabulary_V) < 0
    return jax.lax.scan(add, start, text.ids_RL.T)[0]
