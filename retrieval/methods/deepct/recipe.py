"""The recipe 'deepct': a model that says how much each word of a passage counts (Dai & Callan 2019).

A word is one or more word pieces of BERT: its first piece carries its weight, and pieces with ## go on.

Letters of shapes beside those of `text`: B passages of the global batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.methods.deepct.task import TERMS
from retrieval.models.dropout import dropout, split
from retrieval.models.rngs import Rngs
from retrieval.models.text import Text
from retrieval.models.transformer import INIT, Transformer
from retrieval.models.transformer_config import TransformerConfig
from retrieval.recipes.batch_texts import text_of, token_count
from retrieval.recipes.recipe import RECIPES, LossAndMetrics, Recipe
from retrieval.training.loss_kind import Metrics


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


def term_regression(weight_BL: jax.Array, target_BL: jax.Array, mask_BL: jax.Array) -> tuple[jax.Array, Metrics]:
    """The squared error of tokens (Dai & Callan 2019, section 3.1).

    Each passage's sum over its tokens is scaled by B / (tokens of the batch): the mean of the result over the batch is
    the mean over tokens.

    Args:
      target_BL: the share of the passage's queries that a token's word is in.
      mask_BL: 1 for the first piece of a word, 0 for other tokens and for padding.

    Returns:
      The loss [B], and 'absolute_error' [B], scaled likewise.
    """
    mask_BL = mask_BL.astype(jnp.float32)
    error_BL = weight_BL.astype(jnp.float32) - target_BL
    scale = len(mask_BL) / jnp.maximum(mask_BL.sum(), 1)
    loss_B, absolute_B = (scale * (mask_BL * x_BL).sum(axis=1) for x_BL in (jnp.square(error_BL), jnp.abs(error_BL)))
    return loss_B, {"absolute_error": absolute_B}


class DeepCtRecipe(Recipe):
    """The weight of each word is trained to be the share of the passage's queries that have it."""

    kind = TERMS
    label = "a model that weighs words"

    def build(self, vocab_size: int) -> DeepCT:
        """A Transformer with one number per token."""
        self.check()
        return DeepCT(self.sizes(vocab_size), rngs=Rngs(self.config.seed))

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """Passages are as long as documents."""
        length = self.config.data.document_length
        return {name: length for name in self.kind.fields}

    def loss_of(self, model: DeepCT, batch: Mapping[str, jax.Array], key: jax.Array) -> LossAndMetrics:
        """The squared error of the words' weights."""
        weight_BL = model(text_of(batch, "text"), key)
        loss_B, metrics = term_regression(weight_BL, batch["targets"], batch["mask"])
        return loss_B, metrics | {"tokens": token_count(batch["text"], len(weight_BL))}


RECIPES.register("deepct", DeepCtRecipe)
