"""The recipe 'deepct': a model that says how much each word of a passage counts (Dai & Callan 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from retrieval.methods.deepct.model import DeepCT, term_regression
from retrieval.methods.deepct.task import TERMS
from retrieval.models.rngs import Rngs
from retrieval.models.transformer_config import TransformerConfig
from retrieval.recipes.batch_fields import text_of, token_count
from retrieval.recipes.encoder_sizes import encoder_sizes
from retrieval.recipes.placement import gather
from retrieval.recipes.recipe import RECIPES, Recipe
from retrieval.training.loop import Objective


class DeepCtRecipe(Recipe):
    """The weight of each word is trained to be the share of the passage's queries that have it."""

    kind = TERMS
    label = "a model that weighs words"

    def build(self, vocab_size: int) -> DeepCT:
        """A Transformer with one number per token."""
        self.check()
        return DeepCT(TransformerConfig(**encoder_sizes(self.config, vocab_size)), rngs=Rngs(self.config.seed))

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """Passages are as long as documents."""
        length = self.config.data.document_length
        return {name: length for name in self.kind.fields}

    def objective(self, bound: Callable[[Any], Any]) -> Objective:
        """The squared error of the words' weights."""

        def of_batch(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
            weight_BL = bound(gather(params))(text_of(batch, "text"), key)
            loss_B, metrics = term_regression(weight_BL, batch["targets"], batch["counts"])
            return loss_B, metrics | {"tokens": token_count(batch["text"], len(weight_BL))}

        return of_batch


RECIPES.register("deepct", DeepCtRecipe)
