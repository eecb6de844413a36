"""The recipe 'bert': masked tokens and next-sentence prediction (Devlin et al. 2019), as BERT itself was trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from retrieval.data.examples import feature_lengths
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.libraries import seqio
from retrieval.methods.mlm import validation
from retrieval.methods.mlm.mlm_recipe import MlmRecipe
from retrieval.methods.mlm.next_sentence import NextSentenceModel
from retrieval.models.rngs import Rngs
from retrieval.models.transformer import TransformerConfig
from retrieval.recipes.batch_fields import for_every_text, text_count, text_of, token_count
from retrieval.recipes.encoder_sizes import encoder_sizes
from retrieval.recipes.placement import gather
from retrieval.recipes.recipe import RECIPES
from retrieval.stage_outputs import Run
from retrieval.training import losses
from retrieval.training.loop import Objective


class BertRecipe(MlmRecipe):
    """MLM over pairs of texts, and whether the second follows the first. Packing is MLM's."""

    kind = "masked_pairs"
    label = "a masked language model with next-sentence prediction"
    metrics = validation.METRICS

    def build(self, vocab_size: int) -> NextSentenceModel:
        """A Transformer with both of BERT's heads."""
        self.check()
        return NextSentenceModel(
            TransformerConfig(**encoder_sizes(self.config, vocab_size)), rngs=Rngs(self.config.seed)
        )

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """Pairs are as long as documents."""
        return feature_lengths.next_sentence_lengths(self.config.data.document_length)

    def converter(self, sep_id: int, positives: int = 0) -> seqio.FeatureConverter:
        """As `Recipe.converter`."""
        from retrieval.data.examples.features import NextSentenceConverter

        return NextSentenceConverter(sep_id)

    def check_validation(self) -> None:
        """As `Recipe.check_validation`; also that passages are held out."""
        super().check_validation()
        validation.check(self.config.loop.validate_every, self.config.data.held_out)

    def validation(
        self, run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh
    ) -> Callable[[Any], dict[str, float]]:
        """Both tasks over passages that are held out."""
        self.check_validation()
        return validation.make(run, vocabulary, mesh)

    def objective(self, bound: Callable[[Any], Any]) -> Objective:
        """The sum of both cross-entropies (appendix A.2)."""

        def objective(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
            logits_GPV, logits_B2 = bound(gather(params))(text_of(batch, "text"), batch["positions"], key)
            mlm_G, metrics = losses.token_cross_entropy(logits_GPV, batch["labels"], batch["weights"])
            metrics |= {"mlm": mlm_G, "tokens": token_count(batch["text"], text_count(batch))}
            mlm_B, metrics = for_every_text((mlm_G, metrics), batch)
            classes_B1 = batch["is_random"]
            next_B, of_next = losses.token_cross_entropy(logits_B2[:, None], classes_B1, jnp.ones_like(classes_B1))
            return mlm_B + next_B, metrics | {"next_sentence": next_B, "next_sentence_accuracy": of_next["accuracy"]}

        return objective


RECIPES.register("bert", BertRecipe)
