"""What says of written questions whether they are good: a reranker, and a reader that looks for the answer again.

Doc2Query-- (Gospodinov et al. 2023) leaves out the queries of low scores. Round-trip consistency (Alberti et al. 2019)
leaves out questions whose answer a reader does not find.
"""

from collections.abc import Sequence

import numpy as np

from retrieval.data.sets.beir import Candidate
from retrieval.methods.reader.readers import SpanFinder, open_reader
from retrieval.methods.reranker.rerankers import RowScorer, open_reranker
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
        self._scorer = RowScorer(run.config, open_reranker(run, value, RERANKER))
        self._sizes = run.config.encode.batch_tokens, self._scorer.lengths.row, self._scorer.devices

    def scores(self, queries: Sequence[str], passages: Sequence[Candidate]) -> np.ndarray:
        """The score of each query with its passage, float32 [P]."""
        rows = self._scorer.rows(self._scorer.beginnings(queries), passages)
        return encode_rows(rows, self._scorer.score, *self._sizes)[:, 0] if rows else np.zeros(0, np.float32)


class AnswerJudge:
    """A reader that answers each question from the passage that it was written of."""

    def __init__(self, run: Run, value: str):
        """Args are those of `open_reader`.

        Raises:
          UserError: there is no reader, or it does not fit the run.
        """
        self._find = SpanFinder(open_reader(run, value, READER), 1)
        self._batch_tokens = run.config.encode.batch_tokens

    def answers(self, questions: Sequence[str], passages: Sequence[Candidate]) -> list[str]:
        """The best answer to each question in its passage; '' where there is none."""
        found = self._find.spans(questions, passages, self._batch_tokens)
        return [best[0].text if best else "" for best in found]
