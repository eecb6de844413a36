"""The recipe 'reader': where in the retrieved paragraphs of a question its answer stands (Xiong et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx

from retrieval.arrays import reshape_rows
from retrieval.data.examples import feature_lengths
from retrieval.errors import UserError
from retrieval.libraries import seqio
from retrieval.methods.reader import question_tower
from retrieval.methods.reader.model import SpanReader
from retrieval.models.rngs import Rngs
from retrieval.models.transformer import TransformerConfig
from retrieval.recipes.batch_fields import text_of, token_count
from retrieval.recipes.encoder_sizes import encoder_sizes
from retrieval.recipes.placement import gather
from retrieval.recipes.recipe import RECIPES, Recipe, copy_parameters
from retrieval.training.candidates import inner_products
from retrieval.training.loop import Objective
from retrieval.training.loss_kind import LOSSES, SPAN_PAIRS, SPANS

_CANDIDATES = "candidates"
_KEY = 3  # of the question tower's dropout, beside the reader's


class ReaderRecipe(Recipe):
    """A question and a paragraph are one row of at most `data.document_length` tokens.

    The question has `data.query_length` of them at most; the paragraph is cut to the rest.
    """

    kind = "spans"
    label = "a reader"
    reads = True
    sides = {}
    gives = (SPANS, SPAN_PAIRS)
    options = ("model.answer_tokens", "data.paragraphs")
    examples_of = "spans"
    # A batch cuts rows, spans and scores to its own room for them.
    written_with = ("data.query_length", "data.document_length", "spans.depth", "spans.most")

    def build(self, vocab_size: int) -> SpanReader:
        """A Transformer with the heads that the loss compares."""
        self.check()
        config = self.config
        loss = LOSSES[config.train.loss]
        widths = config.model.answer_tokens if loss.compares == SPAN_PAIRS else 0
        sizes = TransformerConfig(**encoder_sizes(config, vocab_size))
        selects = loss.selects(self.loss_options())
        retriever = question_tower.build(config, vocab_size) if self.retrieves else None
        return SpanReader(sizes, widths=widths, selects=selects, retriever=retriever, rngs=Rngs(config.seed))

    @property
    def retrieves(self) -> bool:
        """As `Recipe.retrieves`."""
        return LOSSES[self.config.train.loss].retrieves(self.loss_options())

    def check(self) -> None:
        """As `Recipe.check`; rows have room for a paragraph, and as many paragraphs are kept as are read."""
        super().check()
        config, data = self.config, self.config.data
        if data.document_length < 2 * data.query_length:
            raise UserError(
                f"config.data.document_length={data.document_length} is the length of a reader's row, of the question "
                f"too, and config.data.query_length={data.query_length} leaves a paragraph less than half of it: raise "
                "the first or lower the second"
            )
        if data.paragraphs > config.spans.depth:
            raise UserError(
                f"config.data.paragraphs={data.paragraphs} are more than config.spans.depth={config.spans.depth}, "
                "which are kept of a question: lower the first or raise the second"
            )
        if self.retrieves and config.spans.early < config.spans.depth:
            raise UserError(
                f"config.train.early=True trains the question tower with config.spans.early={config.spans.early} "
                f"candidates: set that to {config.spans.depth} (config.spans.depth) or more, such as 5000"
            )

    def start_from(self, model: Any, trained: nnx.Module) -> None:
        """As `Recipe.start_from`; of another reader, what both have."""
        if isinstance(trained, SpanReader):
            copy_parameters(trained, model, shared=True)
        else:
            super().start_from(model, trained)

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """Rows are as long as documents."""
        data, spans = self.config.data, self.config.spans
        of_tower = (data.query_length, spans.early) if self.retrieves else ()
        return feature_lengths.span_lengths(data.document_length, data.paragraphs, spans.most, spans.depth, *of_tower)

    @property
    def optional(self) -> list[str]:
        """As `Recipe.optional`."""
        return ["question", _CANDIDATES, "holds"] if self.retrieves else []

    @property
    def tables(self) -> dict[str, tuple[str, int]]:
        """The embeddings of candidates."""
        model = self.config.model
        return {"embedding": (_CANDIDATES, model.embed_dim or model.hidden_size)} if self.retrieves else {}

    def converter(self, sep_id: int, positives: int = 0) -> seqio.FeatureConverter:
        """As `Recipe.converter`."""
        from retrieval.data.examples.features import SpansConverter

        return SpansConverter(sep_id, self.retrieves)

    def objective(self, bound: Callable[[Any], Any]) -> Objective:
        """The loss that the config names, of all rows of a batch."""
        loss = LOSSES[self.config.train.loss].bind(self.loss_options())

        def of_batch(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
            B, K = batch["paragraph"].shape
            model = bound(gather(params))
            scores = model(text_of(batch, "pair"), key)
            scores = {name: reshape_rows(values, B, K, *values.shape[1:]) for name, values in scores.items()}
            if self.retrieves:
                question_BE = model.retriever.encode_queries(text_of(batch, "question"), jax.random.fold_in(key, _KEY))
                scores["retriever"] = inner_products(question_BE, batch["embedding"])
            loss_B, metrics = loss(scores, batch)
            return loss_B, metrics | {"tokens": token_count(batch["pair"], B)}

        return of_batch


RECIPES.register("reader", ReaderRecipe)
