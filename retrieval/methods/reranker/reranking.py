"""A reranker that is asked for the scores of a few documents at a time."""

from collections.abc import Sequence

import numpy as np

from retrieval.data.sets.beir import Candidate
from retrieval.methods.reranker.rerankers import RowScorer, open_reranker
from retrieval.search import encoding
from retrieval.stage_outputs import Run

_FEW = 32  # pairs that are scored as one batch


class PairReranker:
    """A trained reranker. Threads may ask together."""

    def __init__(self, run: Run, value: str, field: str):
        """Args are those of `rerankers.open_reranker`.

        Raises:
          UserError: there is no reranker, or it does not fit the run.
        """
        self._scorer = RowScorer(run.config, open_reranker(run, value, field))

    def compile(self, count: int) -> None:
        """Compiles what scores so many documents, short and long ones: otherwise the first of every length wait."""
        for length in encoding.lengths_up_to(self._scorer.lengths.row):
            self._few([[self._scorer.vocabulary.cls_id] * length] * min(count, _FEW))

    def scores(self, query: str, documents: Sequence[Candidate]) -> np.ndarray:
        """How well each document answers the query, float32 [N]; a higher score is better."""
        rows = self._scorer.rows(self._scorer.beginnings([query]) * len(documents), documents)
        parts = [self._few(rows[start : start + _FEW])[:, 0] for start in range(0, len(rows), _FEW)]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def _few(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        return encoding.encode_few(rows, self._scorer.score, self._scorer.lengths.row, self._scorer.devices)
