"""The recipe 'mlm': a masked language model (Devlin et al. 2019), whose encoder then starts both towers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx

from retrieval.data.examples import feature_lengths
from retrieval.data.examples.packing import Rows
from retrieval.errors import UserError
from retrieval.libraries import seqio
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.transformer import TransformerConfig
from retrieval.models.warm_start import copy_encoder
from retrieval.recipes.batch_fields import for_every_text, text_count, text_of, token_count
from retrieval.recipes.encoder_sizes import encoder_sizes
from retrieval.recipes.placement import gather
from retrieval.recipes.recipe import RECIPES, Recipe, copy_parameters, encoder_of
from retrieval.training import losses
from retrieval.training.loop import Objective


class MlmRecipe(Recipe):
    """Masked tokens are predicted from the rest of a text."""

    kind = "masked"
    label = "a masked language model"
    sides = {"text": "document"}

    def build(self, vocab_size: int) -> MaskedLanguageModel:
        """A Transformer with BERT's head."""
        self.check()
        sizes = TransformerConfig(**encoder_sizes(self.config, vocab_size))
        return MaskedLanguageModel(sizes, rngs=nnx.Rngs(self.config.seed))

    def check(self) -> None:
        """As `Recipe.check`; only a Transformer can learn it."""
        super().check()
        if (encoder := self.config.model.encoder) != "transformer":
            raise UserError(
                f"config.model.encoder is '{encoder}', but only a transformer can learn MLM: set "
                "config.model.encoder=transformer, or config.recipe=two_tower and other tasks in config.data.rates"
            )

    def start_from(self, model: nnx.Module, trained: nnx.Module) -> None:
        """All of a model of its kind; of another one with BERT's head, what both have; of any other, the encoder."""
        assert isinstance(model, MaskedLanguageModel), "`build` makes one"
        if isinstance(trained, MaskedLanguageModel):
            copy_parameters(trained, model, shared=type(trained) is not type(model))
        else:
            copy_encoder(encoder_of(trained), model.encoder, self.label)

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """Texts are as long as documents."""
        return feature_lengths.mlm_lengths(self.config.data.document_length)

    def converter(self, sep_id: int, positives: int = 0) -> seqio.FeatureConverter:
        """As `Recipe.converter`."""
        from retrieval.data.examples.features import MlmConverter

        return MlmConverter()

    def places(self, texts: Mapping[str, Rows]) -> Rows:
        """As many places for masked tokens as texts of full length have in those rows."""
        rows, lengths = texts["text"], self.lengths()
        count = math.ceil(rows.count * rows.length * lengths["positions"] / lengths["text"])
        return Rows(1, count, rows.setting)

    def objective(self, bound: Callable[[Any], Any]) -> Objective:
        """The cross-entropy of the masked tokens."""

        def objective(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
            logits_GPV = bound(gather(params))(text_of(batch, "text"), batch["positions"], key)
            loss_G, metrics = losses.token_cross_entropy(logits_GPV, batch["labels"], batch["weights"])
            return for_every_text((loss_G, metrics | {"tokens": token_count(batch["text"], text_count(batch))}), batch)

        return objective


RECIPES.register("mlm", MlmRecipe)
