"""A reranker that is asked for the scores of a few documents at a time."""

from collections.abc import Sequence

import numpy as np

from retrieval.data.sets.beir import Candidate
from retrieval.recipes import rerankers
from retrieval.recipes.pair_scores import PairScorer, document_bodies, joined, query_beginnings
from retrieval.recipes.placement import local_mesh, parameters_of
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
        reranker = rerankers.open_reranker(run, value, field)
        mesh = local_mesh(run.config)
        self._vocabulary, self._lengths, self._devices = reranker.vocabulary, reranker.lengths, mesh.size
        scorer = PairScorer(run.config, reranker.model, self._vocabulary.sep_id, mesh)
        self._score = scorer.of(parameters_of(reranker.model))

    def compile(self, count: int) -> None:
        """Compiles what scores so many documents, short and long ones: otherwise the first of every length wait."""
        for length in encoding.lengths_up_to(self._lengths.row):
            rows = [[self._vocabulary.cls_id] * length] * min(count, _FEW)
            encoding.encode_few(rows, self._score, self._lengths.row, self._devices)

    def scores(self, query: str, documents: Sequence[Candidate]) -> np.ndarray:
        """How well each document answers the query, float32 [N]; a higher score is better."""
        (beginning,) = query_beginnings(self._vocabulary, [query], self._lengths)
        bodies = document_bodies(self._vocabulary, documents, self._lengths)
        rows = [joined(beginning, body, self._vocabulary.sep_id, self._lengths) for body in bodies]
        parts = [rows[start : start + _FEW] for start in range(0, len(rows), _FEW)]
        scores = [encoding.encode_few(part, self._score, self._lengths.row, self._devices)[:, 0] for part in parts]
        return np.concatenate([np.zeros(0, np.float32), *scores])
