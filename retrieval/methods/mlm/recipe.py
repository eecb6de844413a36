"""The recipes 'mlm', a masked language model, and 'bert', one with next-sentence prediction (Devlin et al. 2019).

The encoder of either then starts both towers. Letters of shapes: G groups of a batch, B texts or pairs, P masked
positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.methods.mlm.task import MASKED_PAIRS
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.pooling import first
from retrieval.models.rngs import Rngs
from retrieval.models.text import Text
from retrieval.models.transformer import INIT
from retrieval.models.transformer_config import TransformerConfig
from retrieval.recipes.batch_texts import for_every_text, text_count, text_of, token_count
from retrieval.recipes.masked import MaskedRecipe
from retrieval.recipes.recipe import RECIPES, LossAndMetrics
from retrieval.training import losses


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


class MlmRecipe(MaskedRecipe):
    """BERT's head on a Transformer."""

    label = "a masked language model"

    def build(self, vocab_size: int) -> MaskedLanguageModel:
        """A Transformer with BERT's head."""
        self.check()
        return MaskedLanguageModel(self.sizes(vocab_size), rngs=Rngs(self.config.seed))

    def loss_of(self, model: MaskedLanguageModel, batch: Mapping[str, jax.Array], key: jax.Array) -> LossAndMetrics:
        """The cross-entropy of the masked tokens."""
        logits_GPV = model(text_of(batch, "text"), batch["positions"], key)
        loss_G, metrics = losses.token_cross_entropy(logits_GPV, batch["labels"], batch["weights"])
        return for_every_text((loss_G, metrics | {"tokens": token_count(batch["text"], text_count(batch))}), batch)


class BertRecipe(MaskedRecipe):
    """MLM over pairs of texts, and whether the second follows the first."""

    kind = MASKED_PAIRS
    label = "a masked language model with next-sentence prediction"

    def build(self, vocab_size: int) -> NextSentenceModel:
        """A Transformer with both of BERT's heads."""
        self.check()
        return NextSentenceModel(self.sizes(vocab_size), rngs=Rngs(self.config.seed))

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """As MLM, with a place for whether the second text is a random one."""
        return {**super().lengths(), "is_random": 1}

    def loss_of(self, model: NextSentenceModel, batch: Mapping[str, jax.Array], key: jax.Array) -> LossAndMetrics:
        """The sum of both cross-entropies (appendix A.2)."""
        logits_GPV, logits_B2 = model(text_of(batch, "text"), batch["positions"], key)
        mlm_G, metrics = losses.token_cross_entropy(logits_GPV, batch["labels"], batch["weights"])
        metrics |= {"mlm": mlm_G, "tokens": token_count(batch["text"], text_count(batch))}
        mlm_B, metrics = for_every_text((mlm_G, metrics), batch)
        classes_B1 = batch["is_random"]
        next_B, of_next = losses.token_cross_entropy(logits_B2[:, None], classes_B1, jnp.ones_like(classes_B1))
        return mlm_B + next_B, metrics | {"next_sentence": next_B, "next_sentence_accuracy": of_next["accuracy"]}


RECIPES.register("mlm", MlmRecipe)
RECIPES.register("bert", BertRecipe)
