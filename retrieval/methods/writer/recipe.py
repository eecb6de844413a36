"""The recipe 'seq2seq': an encoder-decoder that writes a text from another, such as a query from a passage.

doc2query (Nogueira et al. 2019) writes queries; ProQA writes questions of a paragraph and an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from retrieval.data.examples import feature_lengths
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.libraries import seqio
from retrieval.methods.writer import validation
from retrieval.methods.writer.model import EncoderDecoder, WriterConfig, teacher_forced
from retrieval.models.rngs import Rngs
from retrieval.models.transformer import TransformerConfig
from retrieval.recipes.batch_fields import text_of, token_count
from retrieval.recipes.encoder_sizes import encoder_sizes
from retrieval.recipes.placement import gather
from retrieval.recipes.recipe import RECIPES, Recipe
from retrieval.stage_outputs import Run
from retrieval.training import losses
from retrieval.training.loop import Objective


class Seq2SeqRecipe(Recipe):
    """The tokens of a target are predicted from the source and from the target's tokens before them."""

    kind = "generation"
    label = "a model that writes"
    sides = {}
    metrics = validation.METRICS
    head = ("model.writer", "data.query_length")
    options = ("train.label_smoothing",)

    def build(self, vocab_size: int) -> EncoderDecoder:
        """An encoder-decoder. It writes `data.query_length` - 1 tokens at most: the start token is not written."""
        self.check()
        config, writer = self.config, self.config.model.writer
        sizes = TransformerConfig(**encoder_sizes(config, vocab_size), pre_norm=writer.pre_norm)
        decoder = WriterConfig(writer.layers, config.data.query_length - 1, writer.copy)
        return EncoderDecoder(sizes, decoder, rngs=Rngs(config.seed))

    @property
    def pre_norm(self) -> bool:
        """As `Recipe.pre_norm`."""
        return self.config.model.writer.pre_norm

    def takes_encoder(self, other: Recipe) -> bool:
        """As `Recipe.takes_encoder`.

        Raises:
          UserError: the encoder of the other has its norms in other places.
        """
        if (takes := super().takes_encoder(other)) and self.pre_norm:
            raise UserError(
                f"config.train.init_from={self.config.train.init_from}: an encoder whose norms stand after its "
                "sublayers: set config.model.writer.pre_norm=False"
            )
        return takes

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """Sources are as long as documents, targets as queries."""
        return feature_lengths.generation_lengths(self.config.data.document_length, self.config.data.query_length)

    def converter(self, sep_id: int, positives: int = 0) -> seqio.FeatureConverter:
        """As `Recipe.converter`."""
        from retrieval.data.examples.features import GenerationConverter

        return GenerationConverter(sep_id)

    def validation(
        self, run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh
    ) -> Callable[[Any], dict[str, float]]:
        """How probable the held-out queries are."""
        self.check_validation()
        return validation.make(run, vocabulary, mesh)

    def objective(self, bound: Callable[[Any], Any]) -> Objective:
        """The cross-entropy of all tokens of the targets."""
        smoothing = self.config.train.label_smoothing

        def of_batch(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
            seen_BL, labels_BL, weights_BL = teacher_forced(batch["target"])
            logits_BLV = bound(gather(params))(text_of(batch, "source"), seen_BL, key)
            loss_B, metrics = losses.token_cross_entropy(logits_BLV, labels_BL, weights_BL, smoothing=smoothing)
            B = len(seen_BL)
            return loss_B, metrics | {"tokens": token_count(batch["source"], B) + token_count(batch["target"], B)}

        return of_batch


RECIPES.register("seq2seq", Seq2SeqRecipe)
