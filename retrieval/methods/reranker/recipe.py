"""The recipe 'reranker': a cross-encoder that reads a query and a document in one row (Nogueira & Cho 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from retrieval.arrays import reshape_rows
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.libraries import seqio
from retrieval.methods.reranker import validation
from retrieval.methods.reranker.model import CrossEncoder, relevance
from retrieval.models.rngs import Rngs
from retrieval.models.transformer import TransformerConfig
from retrieval.recipes.batch_fields import embed, token_count
from retrieval.recipes.encoder_sizes import encoder_sizes
from retrieval.recipes.pair_recipe import PairRecipe
from retrieval.recipes.placement import gather
from retrieval.recipes.recipe import RECIPES
from retrieval.stage_outputs import Run
from retrieval.training.collapse import SPREAD, Sign
from retrieval.training.loop import Objective
from retrieval.training.loss_kind import CLASSES, LOSSES, SCORES


class RerankerRecipe(PairRecipe):
    """A query and a document are one row, `[CLS] query [SEP] document [SEP]`, of at most `data.document_length` tokens.

    The query has `data.query_length` of them at most; the document is cut to the rest.
    """

    label = "a reranker"
    reranks = True
    sides = {"pair": "document"}
    head = ("model.classes",)
    options = (*PairRecipe.options, "model.classes")
    gives = (SCORES, CLASSES)
    metrics = validation.METRICS

    def build(self, vocab_size: int) -> CrossEncoder:
        """A cross-encoder."""
        self.check()
        sizes = TransformerConfig(**encoder_sizes(self.config, vocab_size))
        return CrossEncoder(sizes, self.config.model.classes, rngs=Rngs(self.config.seed))

    def check(self) -> None:
        """As `Recipe.check`; also the lengths, and the loss."""
        super().check()
        config = self.config
        if config.data.document_length < config.data.query_length + 2:
            raise UserError(
                f"config.data.document_length={config.data.document_length} is the length of a reranker's row, of the "
                f"query too, and config.data.query_length={config.data.query_length} leaves no room for a document: "
                "raise the first or lower the second"
            )
        if config.model.classes == 1 and LOSSES[config.train.loss].compares == CLASSES:
            raise UserError(
                f"config.model.classes=1 is one score, and config.train.loss={config.train.loss} takes two classes: "
                "set config.model.classes=2"
            )

    def converter(self, sep_id: int, positives: int = 0) -> seqio.FeatureConverter:
        """As `Recipe.converter`."""
        from retrieval.data.examples.features import JoinedConverter

        return JoinedConverter(sep_id, self.has_teacher)

    def check_validation(self) -> None:
        """As `Recipe.check_validation`; also that labelled queries are held out to validate on."""
        super().check_validation()
        validation.check(self.config)

    def validation(
        self, run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh
    ) -> Callable[[Any], dict[str, float]]:
        """Reranking the candidates of held-out queries."""
        return validation.make(run, vocabulary, mesh)

    @property
    def collapse(self) -> Sign:
        """As `Recipe.collapse`: the scores of a query's candidates must not become all alike."""
        return SPREAD

    def objective(self, bound: Callable[[Any], Any]) -> Objective:
        """The loss that the config names, of the logits or the scores of a batch."""
        of_classes = LOSSES[self.config.train.loss].compares == CLASSES
        loss = LOSSES[self.config.train.loss].bind(self.loss_options())
        chunk_size = self.config.train.chunk_size

        def of_batch(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
            B, K = batch["document_id"].shape
            logits_RC = embed(bound(gather(params)), batch, "pair", key, chunk_size)
            logits_BKC = reshape_rows(logits_RC, B, K, -1)
            loss_B, metrics = loss(logits_BKC if of_classes else relevance(logits_BKC), batch)
            return loss_B, metrics | {"tokens": token_count(batch["pair"], B)}

        return of_batch


RECIPES.register("reranker", RerankerRecipe)
