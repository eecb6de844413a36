"""The recipes 'mlm', a masked language model, and 'bert', one with next-sentence prediction (Devlin et al. 2019).

The encoder of either then starts both towers. Letters of shapes: G groups of a batch, B texts or pairs, P masked
positions, V vocabulary.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from retrieval.common.errors import UserError
from retrieval.common.libraries import seqio
from retrieval.data.examples.batches import as_written
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.mlm.task import MASKED_PAIRS
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.pooling import first
from retrieval.models.rngs import Rngs
from retrieval.models.text import Text
from retrieval.models.transformer import INIT
from retrieval.models.transformer_config import TransformerConfig
from retrieval.recipes.batch_texts import for_every_text, text_count, text_of, token_count
from retrieval.recipes.masked import MaskedRecipe
from retrieval.recipes.parameters import bind, gather
from retrieval.recipes.recipe import RECIPES, LossAndMetrics, abstract_model
from retrieval.runs.fitting import examples, validation
from retrieval.runs.pipeline.run import Run
from retrieval.training import losses

_log = logging.getLogger(__name__)


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
    """MLM over pairs of texts, and whether the second follows the first.

    Validation is of pairs that are held out: of masked tokens the mean log-probability, in nats, and the share that the
    model finds the most probable; and of pairs the share whose class it finds more probable.
    """

    kind = MASKED_PAIRS
    label = "a masked language model with next-sentence prediction"
    metrics = ("LogLikelihood", "TokenAccuracy", "NextSentenceAccuracy")

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

    def check_validation(self) -> None:
        """As `Recipe.check_validation`; also that passages are held out."""
        super().check_validation()
        validation.check(self.config)

    def validation(self, run: Run, vocabulary: Vocabulary, mesh: Mesh) -> Callable[[Any], dict[str, float]]:
        """A function from parameters to `metrics` over pairs that stay the same."""
        pairs, bound = self.held_out(run, vocabulary), bind(abstract_model(self.config, len(vocabulary)))
        count = len(pairs["text"])
        _log.info("validation: %d pairs, %d of them with a random second text", count, pairs["is_random"].sum())

        def sums(params: Any, batch: Mapping[str, jax.Array], real_B: jax.Array) -> list[jax.Array]:
            logits_BPV, logits_B2 = bound(gather(params))(text_of(batch, "text"), batch["positions"], None)
            label_BP, normalizer_BP, hit_BP = losses.of_labels(logits_BPV, batch["labels"])
            log_BP, weights_BP = label_BP - normalizer_BP, batch["weights"] * real_B[:, None]
            hit_B = logits_B2.argmax(axis=-1) == batch["is_random"][:, 0]
            return [(weights_BP * log_BP).sum(), (weights_BP * hit_BP).sum(), weights_BP.sum(), (real_B * hit_B).sum()]

        summed = validation.summed(pairs, mesh, sums)

        def validate(params: Any) -> dict[str, float]:
            log, hits, tokens, right = summed(params)
            return dict(zip(self.metrics, (log / tokens, hits / tokens, right / count)))

        return validate

    def held_out(self, run: Run, vocabulary: Vocabulary) -> dict[str, np.ndarray]:
        """The first pairs of the held-out passages, as many as `loop.validate_queries`, in the fields of a batch."""
        name, _ = examples.register_tasks(run, vocabulary, validation=True)
        open_dataset = as_written(seqio.get_mixture_or_task(name).get_dataset)
        drawn = open_dataset(self.lengths(), "train", shuffle=False, seed=0, num_epochs=1)
        rows = as_written(examples.converter_of(self, vocabulary))(drawn, task_feature_lengths=self.lengths())
        pairs = list(itertools.islice(rows.as_numpy_iterator(), self.config.loop.validate_queries))
        if not pairs:
            share = self.config.data.held_out
            raise UserError(f"config.data.held_out={share} holds no passage out: a larger share is needed")
        return {name: np.stack([pair[name] for pair in pairs]) for name in pairs[0]}


RECIPES.register("mlm", MlmRecipe)
RECIPES.register("bert", BertRecipe)
