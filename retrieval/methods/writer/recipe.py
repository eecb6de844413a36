"""The recipe 'seq2seq': an encoder-decoder that writes a text from another, such as a query from a passage.

doc2query (Nogueira et al. 2019) writes queries; ProQA writes questions of a paragraph and an answer.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from retrieval.common.errors import UserError
from retrieval.data.sets import beir
from retrieval.data.tokenizers.prefixes import rows_of
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.writer.examples import GENERATION
from retrieval.methods.writer.model import EncoderDecoder, WriterConfig, teacher_forced
from retrieval.models.architecture import PRE_NORM
from retrieval.models.rngs import Rngs
from retrieval.recipes.batch_texts import text_of, token_count
from retrieval.recipes.inference import token_types
from retrieval.recipes.parameters import bind, gather
from retrieval.recipes.recipe import RECIPES, LossAndMetrics, Recipe, abstract_model
from retrieval.recipes.towers import query_tokens
from retrieval.runs.fitting import held_out_questions, validation
from retrieval.runs.pipeline.run import Run
from retrieval.search.text_batches import padded
from retrieval.training import losses

_log = logging.getLogger(__name__)


class Seq2SeqRecipe(Recipe):
    """The tokens of a target are predicted from the source and from the target's tokens before them."""

    kind = GENERATION
    label = "a model that writes"
    # Of the tokens of held-out queries, the end token among them: the mean log-probability, in nats, and the share of
    # those that the model finds the most probable. Of both, more is better.
    metrics = ("LogLikelihood", "TokenAccuracy")
    head = ("model.writer", "data.query_length")
    options = ("train.label_smoothing",)

    def build(self, vocab_size: int) -> EncoderDecoder:
        """An encoder-decoder. It writes `data.query_length` - 1 tokens at most: the start token is not written."""
        self.check()
        config, writer, sizes = self.config, self.config.model.writer, self.sizes(vocab_size)
        if writer.pre_norm:
            sizes = dataclasses.replace(sizes, architecture=PRE_NORM)
        decoder = WriterConfig(writer.layers, config.data.query_length - 1, writer.copy)
        return EncoderDecoder(sizes, decoder, rngs=Rngs(config.seed))

    def check(self) -> None:
        """As `Recipe.check`; only BERT's norms can stand in another place than they do."""
        super().check()
        if self.pre_norm and self.config.model.family != "bert":
            family = f"config.model.family={self.config.model.family}"
            raise UserError(f"{family} has its own places for norms: set config.model.writer.pre_norm=False")

    @property
    def pre_norm(self) -> bool:
        """As `Recipe.pre_norm`."""
        return self.config.model.writer.pre_norm

    def takes_encoder(self, other: Recipe) -> bool:
        """As `Recipe.takes_encoder`."""
        if (takes := super().takes_encoder(other)) and self.pre_norm:
            what = f"config.train.init_from={self.config.train.init_from}: norms stand after its sublayers"
            raise UserError(f"{what}: set config.model.writer.pre_norm=False")
        return takes

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """Sources are as long as documents, targets as queries."""
        return {"source": self.config.data.document_length, "target": self.config.data.query_length}

    def validation(self, run: Run, vocabulary: Vocabulary, mesh: Mesh) -> Callable[[Any], dict[str, float]]:
        """How probable the held-out queries are, given their passages; B pairs of a batch, L tokens of a query."""
        pairs, bound = held_out(run, vocabulary), bind(abstract_model(run.config, len(vocabulary)))
        _log.info("validation: %d pairs", len(pairs["source"]))

        def sums(params: Any, batch: Mapping[str, jax.Array], real_B: jax.Array) -> list[jax.Array]:
            seen_BL, labels_BL, weights_BL = teacher_forced(batch["target"])
            logits_BLV = bound(gather(params))(text_of(batch, "source"), seen_BL, None)
            label_BL, normalizer_BL, hit_BL = losses.of_labels(logits_BLV, labels_BL)
            log_BL, weights_BL = label_BL - normalizer_BL, weights_BL * real_B[:, None]
            return [(weights_BL * values_BL).sum() for values_BL in (log_BL, hit_BL, jnp.ones_like(log_BL))]

        summed = validation.summed(pairs, mesh, sums)

        def validate(params: Any) -> dict[str, float]:
            log, hits, tokens = summed(params)
            return dict(zip(self.metrics, (log / tokens, hits / tokens)))

        return validate

    def loss_of(self, model: EncoderDecoder, batch: Mapping[str, jax.Array], key: jax.Array) -> LossAndMetrics:
        """The cross-entropy of all tokens of the targets."""
        seen_BL, labels_BL, weights_BL = teacher_forced(batch["target"])
        logits_BLV, smoothing = model(text_of(batch, "source"), seen_BL, key), self.config.train.label_smoothing
        loss_B, metrics = losses.token_cross_entropy(logits_BLV, labels_BL, weights_BL, smoothing=smoothing)
        B = len(seen_BL)
        return loss_B, metrics | {"tokens": token_count(batch["source"], B) + token_count(batch["target"], B)}


def held_out(run: Run, vocabulary: Vocabulary) -> dict[str, np.ndarray]:
    """The held-out queries with each of their passages, in the fields of a batch.

    Raises:
      UserError: none is held out.
    """
    data = run.config.data
    queries, qrels = held_out_questions.validation(run)
    relevant = [(query, id) for query, grades in qrels.items() for id, grade in grades.items() if grade > 0]
    wanted = {id for _, id in relevant}
    candidates = beir.read_candidates(held_out_questions.validation_folder(run) / "corpus.jsonl")
    passages = {candidate.id: candidate for candidate in candidates if candidate.id in wanted}
    sources = rows_of(vocabulary, [passages[id] for _, id in relevant], data.document_length)
    targets = query_tokens(run.config, vocabulary, [queries[query] for query, _ in relevant])
    source_NM = padded(sources, len(relevant), data.document_length)
    target_NL = padded(targets, len(relevant), data.query_length)
    return {"source": source_NM, "source_types": token_types(source_NM, vocabulary.sep_id), "target": target_NL}


RECIPES.register("seq2seq", Seq2SeqRecipe)
