"""Scores of pairs of a query and a document, in files: a run that was killed goes on after the last one."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.data.sets.beir import Candidate
from retrieval.methods.reranker.rerankers import Reranker, RowScorer
from retrieval.search import encoding


class Scores(NamedTuple):
    """The scores [P] of pairs, and the seconds that one takes; None where an earlier process has scored all."""

    values: np.ndarray
    seconds: float | None


class Scorer:
    """A reranker on the devices of this host; every host scores files of its own."""

    def __init__(self, config: ConfigDict, reranker: Reranker, shard_size: int):
        """Args are the run's config, the reranker, and the pairs of a file."""
        self._scorer = RowScorer(config, reranker)
        self._sizes = {
            "shard_size": shard_size,
            "batch_tokens": config.encode.batch_tokens,
            "longest": self._scorer.lengths.row,
            "multiple": self._scorer.devices,
        }

    def score(
        self,
        folder: Path,
        queries: Sequence[str],
        pairs: Iterable[tuple[int, Any]],
        total: int,
        text_of: Callable[[Any], Candidate],
    ) -> Scores:
        """The scores of pairs, in their order.

        Args:
          folder: where the files lie.
          queries: the texts of all queries.
          pairs: the place of a query, and what `text_of` finds a document by.
          total: how many pairs there are.

        Raises:
          UserError: a score is not finite.
        """
        if not total:
            return Scores(np.zeros(0, np.float32), None)
        beginnings, scored = self._scorer.beginnings(queries), 0

        def rows(members: Sequence[tuple[int, Any]]) -> list[list[list[int]]]:
            nonlocal scored
            scored += len(members)
            documents = [text_of(document) for _, document in members]
            return [[row] for row in self._scorer.rows((beginnings[query] for query, _ in members), documents)]

        began = time.perf_counter()
        texts = ((str(query), (query, document)) for query, document in pairs)
        encoding.encode(folder, "pairs", texts, total, rows, self._scorer.score, **self._sizes)
        seconds = time.perf_counter() - began
        return Scores(encoding.load_of_all_hosts(folder, "pairs")[:, 0], seconds / scored if scored else None)
