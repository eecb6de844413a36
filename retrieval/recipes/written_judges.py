"""What says of written questions whether they are good: a reranker, and a reader that looks for the answer again.

Doc2Query-- (Gospodinov et al. 2023) leaves out the queries of low scores. Round-trip consistency (Alberti et al. 2019)
leaves out questions whose answer a reader does not find.
"""

from collections.abc import Sequence

import numpy as np

from retrieval.data.labelled.reader_rows import question_tokens, row_of
from retrieval.data.sets.beir import Candidate
from retrieval.recipes.pair_scores import PairScorer, document_bodies, joined, query_beginnings
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.readers import SpanFinder, open_reader, spans_of
from retrieval.recipes.rerankers import open_reranker
from retrieval.search.encoding import encode_rows
from retrieval.stage_outputs import Run

RERANKER, READER = "config.generate.reranker", "config.generate.reader"


class QueryJudge:
    """A reranker that scores queries with the passages that they were written of."""

    def __init__(self, run: Run, value: str):
        """Args are those of `open_reranker`.

        Raises:
          UserError: there is no reranker, or it does not fit the run.
        """
        self._reranker, mesh = open_reranker(run, value, RERANKER), local_mesh(run.config)
        self._sizes = run.config.encode.batch_tokens, self._reranker.lengths.row, mesh.size
        scorer = PairScorer(run.config, self._reranker.model, self._reranker.vocabulary.sep_id, mesh)
        self._score = scorer.of(parameters_of(self._reranker.model))

    def scores(self, queries: Sequence[str], passages: Sequence[Candidate]) -> np.ndarray:
        """The score of each query with its passage, float32 [P]."""
        _, vocabulary, lengths = self._reranker
        sides = zip(query_beginnings(vocabulary, queries, lengths), document_bodies(vocabulary, passages, lengths))
        rows = [joined(query, body, vocabulary.sep_id, lengths) for query, body in sides]
        return encode_rows(rows, self._score, *self._sizes)[:, 0] if rows else np.zeros(0, np.float32)


class AnswerJudge:
    """A reader that answers each question from the passage that it was written of."""

    def __init__(self, run: Run, value: str):
        """Args are those of `open_reader`.

        Raises:
          UserError: there is no reader, or it does not fit the run.
        """
        self._reader = open_reader(run, value, READER)
        self._find = SpanFinder(self._reader, 1)
        self._batch_tokens = run.config.encode.batch_tokens

    def answers(self, questions: Sequence[str], passages: Sequence[Candidate]) -> list[str]:
        """The best answer to each question in its passage; '' where there is none."""
        vocabulary, lengths = self._reader.vocabulary, self._reader.lengths
        asked = [question_tokens(vocabulary, question, lengths) for question in questions]
        rows = [row_of(vocabulary, question, passage, lengths) for question, passage in zip(asked, passages)]
        if not rows:
            return []
        sizes = self._batch_tokens, lengths.row, self._find.mesh.size
        found = encode_rows([row.ids for row in rows], self._find, *sizes)
        spans = [
            spans_of(values, row, passage.text, 0, 0.0, False) for values, row, passage in zip(found, rows, passages)
        ]
        return [best[0].text if best else "" for best in spans]
