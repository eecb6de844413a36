"""What recipes of masked language models have in common: examples, lengths, packing, and what they start from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flax import nnx

from retrieval.data.examples.example_kind import MASKED, masked_lengths
from retrieval.data.examples.packing import Rows
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.warm_start import copy_parameters
from retrieval.recipes.encoder_sizes import check_sees_all
from retrieval.recipes.recipe import Recipe


class MaskedRecipe(Recipe):
    """Masked tokens are predicted from the rest of a text."""

    kind = MASKED
    options = ("data.pack.query",)  # not read, but a config of pairs that it is made from sets it with the other side

    def check(self) -> None:
        """As `Recipe.check`; a masked token is told from both sides."""
        super().check()
        check_sees_all(self.config.model, f"{self.label} tells a token from both sides: take another family")

    def start_from(self, model: Any, trained: nnx.Module) -> None:
        """As `Recipe.start_from`; of a model of another kind with BERT's head, what both have."""
        if isinstance(trained, MaskedLanguageModel):
            copy_parameters(trained, model, shared=type(trained) is not type(model))
        else:
            super().start_from(model, trained)

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """Texts are as long as documents."""
        return masked_lengths(self.config.data.document_length)

    def places(self, texts: Mapping[str, Rows]) -> Rows:
        """As many places for masked tokens as texts of full length have in those rows."""
        rows, lengths = texts["text"], self.lengths()
        count = math.ceil(rows.count * rows.length * lengths["positions"] / lengths["text"])
        return Rows(1, count, rows.setting)
