"""The recipe 'reranker': a cross-encoder that reads a query and a document in one row (Nogueira & Cho 2019)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from retrieval.common.errors import UserError
from retrieval.common.libraries import tf
from retrieval.common.runtime.arrays import reshape_rows
from retrieval.common.runtime.filler import FILLER
from retrieval.data.examples.example_kind import PAIRS, ExampleKind, Field, tokens, types
from retrieval.data.examples.token_rows import Record
from retrieval.data.tokenizers.template import PairTemplate, Template
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.evaluation import metrics
from retrieval.methods.reranker.model import CrossEncoder, folder_pooling, poolings, relevance
from retrieval.models.rngs import Rngs
from retrieval.recipes.batch_texts import embed, token_count
from retrieval.recipes.recipe import POOL_METRICS, RECIPES, LossAndMetrics, PairRecipe, abstract_model
from retrieval.runs.fitting.validation import LabelledPool, labelled_pool
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import published_weights as bert_weights
from retrieval.runs.weights.pair_scorer import JoinedRows, pair_of, pair_scorer
from retrieval.search.bm25 import Bm25Index
from retrieval.search.encoding import encode_rows
from retrieval.training.loss_kind import CLASSES, SCORES

_VALIDATED = 20  # candidates of BM25 that a validation puts beside the positives
_ROWS = ("document_id", "document")  # a row is as long as a document alone would be


def _made(row: Record, _: int, template: Template, around: PairTemplate) -> Record:
    """Of documents 9 long, [CLS] = 2, [SEP] = 3, query [2 7 8 3] and document [[2 5 3 9 6 3 -1 -1 -1]] the fields

        pair [[2 7 8 3 5 9 6 3 -1]]   pair_types [[0 0 0 0 1 1 1 1 0]]

    The query keeps its length. The document, its title and text without the [SEP] between them, is cut to the rest.
    """
    before, between, behind = template  # as stored texts have it
    query, bodies = tf.boolean_mask(row["query"], row["query"] != FILLER), row["document"][:, len(before) :]
    first, middle, last = (tf.constant(part, query.dtype) for part in around[:3])
    query = tf.concat([first, query[len(before) : tf.size(query) - len(behind)], middle], 0)
    ragged: Any = tf.ragged  # which the stubs lack
    shape: Any = row["document"].shape
    K, length = shape
    of_text = tf.reduce_all(bodies[:, :, None] != tf.constant([FILLER, *between, *behind], bodies.dtype), axis=2)
    bodies = ragged.boolean_mask(bodies, of_text)[:, : length - tf.size(query) - len(around.behind)]
    queries, ends = (tf.tile(ids[None], [K, 1]) for ids in (query, last))
    pair = tf.concat([queries, bodies, ends], axis=1).to_tensor(FILLER, shape=[K, length])
    return {"pair": pair, "pair_types": types(pair, *around.change)}


JOINED = dataclasses.replace(
    PAIRS,
    made={"pair": tokens(_ROWS, side="document"), "pair_types": Field(shape=_ROWS)},
    unread=("query", "document", "log_q"),
)
_log = logging.getLogger(__name__)


class RerankerRecipe(PairRecipe):
    """A query and a document are one row, `[CLS] query [SEP] document [SEP]`, of at most `data.document_length` tokens.

    What stands around them is the vocabulary's.

    The query has `data.query_length` of them at most; the document is cut to the rest.
    """

    kind = JOINED
    label = "a reranker"
    reranks = True
    published_by = "reranker"
    head = ("model.classes",)
    options = (*PairRecipe.options, "model.classes")
    outputs = (SCORES, CLASSES)
    metrics = POOL_METRICS

    def build(self, vocab_size: int) -> CrossEncoder:
        """A cross-encoder."""
        self.check()
        sizes, rngs = self.sizes(vocab_size), Rngs(self.config.seed)
        return CrossEncoder(sizes, self.config.model.classes, pooling=self.pooling, rngs=rngs)

    @property
    def pooling(self) -> str:
        """What the classifier stands on: `model.pooling`, where those of the family have a choice."""
        known, pooling = poolings(self.config.model.family), self.config.model.pooling
        return pooling if pooling in known else known[0]

    def check_run(self, run: Run) -> None:
        """As `Recipe.check_run`; the classifier of a folder stands on what this one's does."""
        for folder in dict.fromkeys(bert_weights.folders(self.config).values()):
            if folder.classes and folder.family == "distilbert":
                why = "a DistilBERT's classifier has another activation: start from an encoder without one"
                raise UserError(f"config.train.init_from={folder.path}: {why}")
            if folder.classes and (theirs := folder_pooling(folder)) != self.pooling:
                why = f"its classifier stands on '{theirs}', and here on '{self.pooling}'"
                raise UserError(f"config.train.init_from={folder.path}: {why}: set config.model.pooling={theirs}")

    def framed(self, vocabulary: Vocabulary) -> ExampleKind:
        """As `Recipe.framed`."""
        make = functools.partial(_made, template=vocabulary.template, around=pair_of(vocabulary))
        return dataclasses.replace(JOINED, make=make)

    def check(self) -> None:
        """As `Recipe.check`; also the lengths, and the loss."""
        super().check()
        config = self.config
        if config.data.document_length < config.data.query_length + 2:
            why = f"a reranker's row has the query too and config.data.query_length={config.data.query_length} fills it"
            raise UserError(f"config.data.document_length={config.data.document_length}: {why}: raise the first")
        if config.model.classes == 1 and self.named_loss.inputs == CLASSES:
            raise UserError(f"config.train.loss={config.train.loss} takes two classes: set config.model.classes=2")

    def check_validation(self) -> None:
        """As `Recipe.check_validation`; also that labelled queries are held out to validate on."""
        super().check_validation()
        if not self.config.data.rates.pairs:
            way = "set config.data.rates.pairs=1, whose held-out queries validate a reranker, or it to 0"
            raise UserError(f"config.loop.validate_every={self.config.loop.validate_every}: {way}")

    def validation(self, run: Run, vocabulary: Vocabulary, mesh: Mesh) -> Callable[[Any], dict[str, float]]:
        """Where the positive of a held-out query stands among what BM25 finds for it, once that is reranked.

        The positives stand last before they are reranked, and ties keep that order: equal scores earn nothing.
        """
        config, pool = self.config, labelled_pool(run)
        lists = list(_lists(pool, _VALIDATED))
        rows_QK = np.array(list(zip(*itertools.zip_longest(*lists, fillvalue=-1))), np.int32)
        is_result_QK = rows_QK >= 0
        joined = JoinedRows(vocabulary, config.data.document_length, config.data.query_length)
        pairs = [
            (query, row) for query, of_query in zip(joined.begin([*pool.queries.values()]), lists) for row in of_query
        ]
        rows = joined.of((query for query, _ in pairs), [pool.candidates[row] for _, row in pairs])
        score = pair_scorer(config, abstract_model(config, len(vocabulary)), pair_of(vocabulary), mesh)
        _log.info("validation: %d queries with %d candidates of BM25 each", len(lists), _VALIDATED)
        queries, candidates = list(pool.queries), [candidate.id for candidate in pool.candidates]

        def validate(params: Any) -> dict[str, float]:
            longest, tokens = config.data.document_length, config.encode.batch_tokens
            scores_QK = np.full(rows_QK.shape, -np.inf, np.float32)
            scores_QK[is_result_QK] = encode_rows(rows, score(params), tokens, longest, mesh.size)[:, 0]
            order_QK = np.argsort(-scores_QK, axis=1, kind="stable")
            ranked_QK = np.take_along_axis(rows_QK, order_QK, axis=1)
            return metrics.evaluate(ranked_QK, queries, candidates, pool.qrels, POOL_METRICS)

        return validate

    def loss_of(self, model: CrossEncoder, batch: Mapping[str, jax.Array], key: jax.Array) -> LossAndMetrics:
        """The loss that the config names, of the logits or the scores of a batch."""
        (B, K), loss = batch["document_id"].shape, self.named_loss
        logits_BKC = reshape_rows(embed(model, batch, "pair", key, self.config.train.chunk_size), B, K, -1)
        loss_B, metrics = loss(logits_BKC if loss.inputs == CLASSES else relevance(logits_BKC), batch)
        return loss_B, metrics | {"tokens": token_count(batch["pair"], B)}


def _lists(pool: LabelledPool, count: int) -> Iterator[list[int]]:
    """Of each query the rows of what BM25 finds that is not relevant, then those of its positives."""
    row_of = {candidate.id: row for row, candidate in enumerate(pool.candidates)}
    words = Bm25Index.build([f"{c.title} {c.text}" for c in pool.candidates], "title + text")
    most = max(len(grades) for grades in pool.qrels.values())
    _, found_QK = words.search(list(pool.queries.values()), min(count + most, len(pool.candidates)))
    for query, result_rows in zip(pool.queries, found_QK.tolist()):
        relevant = [row_of[id] for id, grade in pool.qrels[query].items() if grade > 0]
        yield [row for row in result_rows if row >= 0 and row not in relevant][:count] + relevant


RECIPES.register("reranker", RerankerRecipe)
