"""Reranking in the middle of training: where the positive of a held-out query stands among what BM25 finds for it."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.evaluation import metrics
from retrieval.methods.reranker.pair_scores import Lengths, PairScorer, document_bodies, joined, query_beginnings
from retrieval.recipes.recipe import abstract_model
from retrieval.recipes.validation import METRICS, LabelledPool, labelled_pool
from retrieval.search.bm25 import Bm25Index
from retrieval.search.encoding import encode_rows
from retrieval.stage_outputs import Run

_log = logging.getLogger(__name__)


def check(config: ConfigDict) -> None:
    """Checks that labelled queries are held out to validate on.

    Raises:
      UserError: there are no labelled ones.
    """
    if not config.data.rates.pairs:
        raise UserError(
            f"config.loop.validate_every={config.loop.validate_every}: a reranker is validated on labelled queries "
            "that are held out: set config.data.rates.pairs=1, or config.loop.validate_every=0"
        )


def make(run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh) -> Callable[[Any], dict[str, float]]:
    """A function from parameters to METRICS over candidates that stay the same.

    The positives stand last before they are reranked, and ties keep that order: equal scores earn nothing.

    Raises:
      UserError: as `check`, or no query is held out.
    """
    config = run.config
    check(config)
    pool = labelled_pool(run)
    lists = list(_lists(pool, config.loop.validate_negatives))
    rows_QK = np.array([found + [-1] * (max(map(len, lists)) - len(found)) for found in lists], np.int32)
    is_result_QK = rows_QK >= 0
    rows = _rows(pool, lists, vocabulary, Lengths(config.data.query_length, config.data.document_length))
    scorer = PairScorer(config, abstract_model(config, len(vocabulary)), vocabulary.sep_id, mesh)
    _log.info("validation: %d queries with %d candidates of BM25 each", len(lists), config.loop.validate_negatives)
    queries, candidates = list(pool.queries), [candidate.id for candidate in pool.candidates]

    def validate(params: Any) -> dict[str, float]:
        longest, tokens = config.data.document_length, config.encode.batch_tokens
        scores_QK = np.full(rows_QK.shape, -np.inf, np.float32)
        scores_QK[is_result_QK] = encode_rows(rows, scorer.of(params), tokens, longest, mesh.size)[:, 0]
        order_QK = np.argsort(-scores_QK, axis=1, kind="stable")
        ranked_QK = np.take_along_axis(rows_QK, order_QK, axis=1)
        return metrics.evaluate(ranked_QK, queries, candidates, pool.qrels, METRICS)

    return validate


def _lists(pool: LabelledPool, count: int) -> Iterator[list[int]]:
    """Of each query the rows of what BM25 finds that is not relevant, then those of its positives."""
    row_of = {candidate.id: row for row, candidate in enumerate(pool.candidates)}
    words = Bm25Index.build([f"{c.title} {c.text}" for c in pool.candidates], "title + text")
    most = max(len(grades) for grades in pool.qrels.values())
    _, found_QK = words.search(list(pool.queries.values()), min(count + most, len(pool.candidates)))
    for query, result_rows in zip(pool.queries, found_QK.tolist()):
        relevant = [row_of[id] for id, grade in pool.qrels[query].items() if grade > 0]
        yield [row for row in result_rows if row >= 0 and row not in relevant][:count] + relevant


def _rows(pool: LabelledPool, lists: list[list[int]], vocabulary: Vocabulary, lengths: Lengths) -> list[list[int]]:
    """The token ids of all pairs, one query after the other."""
    beginnings = query_beginnings(vocabulary, list(pool.queries.values()), lengths)
    bodies = document_bodies(vocabulary, pool.candidates, lengths)
    return [
        joined(query, bodies[row], vocabulary.sep_id, lengths)
        for query, of_query in zip(beginnings, lists)
        for row in of_query
    ]
