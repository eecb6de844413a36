"""The recipe 'mlm': a masked language model (Devlin et al. 2019), whose encoder then starts both towers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx

from retrieval.data.examples import feature_lengths
from retrieval.data.examples.packing import Rows
from retrieval.libraries import seqio
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.rngs import Rngs
from retrieval.models.transformer import TransformerConfig
from retrieval.recipes.batch_fields import for_every_text, text_count, text_of, token_count
from retrieval.recipes.encoder_sizes import encoder_sizes
from retrieval.recipes.placement import gather
from retrieval.recipes.recipe import RECIPES, Recipe, copy_parameters
from retrieval.training import losses
from retrieval.training.loop import Objective


class MlmRecipe(Recipe):
    """Masked tokens are predicted from the rest of a text."""

    kind = "masked"
    label = "a masked language model"
    sides = {"text": "document"}
    options = ("data.pack.query",)  # not read, but a config of pairs that it is made from sets it with the other side

    def build(self, vocab_size: int) -> MaskedLanguageModel:
        """A Transformer with BERT's head."""
        self.check()
        sizes = TransformerConfig(**encoder_sizes(self.config, vocab_size))
        return MaskedLanguageModel(sizes, rngs=Rngs(self.config.seed))

    def start_from(self, model: Any, trained: nnx.Module) -> None:
        """As `Recipe.start_from`; of a model of another kind with BERT's head, what both have."""
        if isinstance(trained, MaskedLanguageModel):
            copy_parameters(trained, model, shared=type(trained) is not type(model))
        else:
            super().start_from(model, trained)

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
