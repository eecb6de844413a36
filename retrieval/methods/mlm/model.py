"""BERT as it was pre-trained (Devlin et al. 2019, section 3.1): a masked language model that also says whether the
second text of a pair follows the first.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.pooling import first
from retrieval.models.text import Text
from retrieval.models.transformer import INIT
from retrieval.models.transformer_config import TransformerConfig


class NextSentenceModel(MaskedLanguageModel):
    """A masked language model, with BERT's pooler and two classes on it: the next text, or a random one."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.pooler = nnx.Linear(config.hidden_size, config.hidden_size, kernel_init=INIT, rngs=rngs)
        self.next_sentence = nnx.Linear(config.hidden_size, 2, kernel_init=INIT, rngs=rngs)

    def __call__(
        self, text: Text, masked_positions_GP: jax.Array, dropout_key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Logits of the masked tokens, as `MaskedLanguageModel` gives them, and of the two classes, float32 [B, 2].

        Args:
          text: [CLS] first [SEP] second [SEP], of token types 0 and 1.
        """
        hidden_RLH = self.encoder(text, dropout_key=dropout_key)
        pooled_BH = jnp.tanh(self.pooler(first(hidden_RLH, text).astype(jnp.float32)))
        return self.predict(hidden_RLH, masked_positions_GP), self.next_sentence(pooled_BH)
