"""The cross-encoder (Nogueira & Cho 2019): a query and a passage in one row, to the relevance of the passage.

Letters of shapes beside those of `text`: C classes.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.errors import UserError
from retrieval.models.dropout import dropout, split
from retrieval.models.text import Text, first
from retrieval.models.transformer import INIT, Transformer, TransformerConfig


class CrossEncoder(nnx.Module):
    """BERT with its pooler, dropout and a linear layer, as Hugging Face's `BertForSequenceClassification`.

    With one class its logit is the score. With two, not relevant and relevant, the score is log p(relevant).
    """

    def __init__(self, config: TransformerConfig, classes: int, *, sigmoid: bool = False, rngs: nnx.Rngs):
        """Makes one with random weights.

        Args:
          sigmoid: of one class: whether the score is the logit's sigmoid.

        Raises:
          UserError: there are not one or two classes.
        """
        if classes not in (1, 2):
            raise UserError(
                f"cross-encoder: {classes} classes; take 1, for a score, or 2, for not relevant and relevant"
            )
        self.classes, self.sigmoid = classes, sigmoid
        self.encoder = Transformer(config, rngs=rngs)
        self.pooler = nnx.Linear(config.hidden_size, config.hidden_size, kernel_init=INIT, rngs=rngs)
        self.classifier = nnx.Linear(config.hidden_size, classes, kernel_init=INIT, rngs=rngs)

    def __call__(self, pairs: Text, dropout_key: jax.Array | None) -> jax.Array:
        """Logits, float32 [B, C].

        Args:
          pairs: [CLS] query [SEP] passage [SEP], of token types 0 and 1, as one text each.
        """
        encoder_key, key = split(dropout_key, 2)
        cls_BH = first(self.encoder(pairs, dropout_key=encoder_key), pairs).astype(jnp.float32)
        pooled_BH = dropout(jnp.tanh(self.pooler(cls_BH)), self.encoder.config.dropout, key)
        return self.classifier(pooled_BH)

    def scores(self, pairs: Text) -> jax.Array:
        """What passages are ranked by, float32 [B], whatever other pairs are in the batch."""
        score_B = relevance(self(pairs, None))
        return jax.nn.sigmoid(score_B) if self.sigmoid else score_B


def relevance(logits_BC: jax.Array) -> jax.Array:
    """The score of each pair, [B]; or [B, K] from [B, K, C]."""
    if logits_BC.shape[-1] == 1:
        return logits_BC[..., 0]
    # A log_softmax is the same number, but in float32 it is 0 for all pairs of which the model is sure.
    return jax.nn.log_sigmoid(logits_BC[..., 1] - logits_BC[..., 0])
