"""Scores of pairs of a query and a document, in files: a run that was killed goes on after the last one."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.data.sets.beir import Candidate
from retrieval.recipes.pair_scores import PairScorer, document_bodies, joined, query_beginnings
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.rerankers import Reranker
from retrieval.runtime import hosts
from retrieval.search import encoding


class Scores(NamedTuple):
    """The scores [P] of pairs, and the seconds that one takes; None where an earlier process has scored all."""

    values: np.ndarray
    seconds: float | None


class Scorer:
    """A reranker on the devices of this host; every host scores files of its own."""

    def __init__(self, config: ConfigDict, reranker: Reranker, shard_size: int):
        """Args are the run's config, the reranker, and the pairs of a file."""
        self._mesh = local_mesh(config)
        self._reranker = reranker
        scorer = PairScorer(config, reranker.model, reranker.vocabulary.sep_id, self._mesh)
        self._score = scorer.of(parameters_of(reranker.model))
        self._sizes = {"shard_size": shard_size, "batch_tokens": config.encode.batch_tokens}

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
        _, vocabulary, lengths = self._reranker
        beginnings = query_beginnings(vocabulary, queries, lengths)

        def tokens(members: Sequence[tuple[int, Any]]) -> list[list[list[int]]]:
            bodies = document_bodies(vocabulary, [text_of(document) for _, document in members], lengths)
            return [
                [joined(beginnings[query], body, vocabulary.sep_id, lengths)]
                for (query, _), body in zip(members, bodies)
            ]

        scored = 0

        def counted(members: Sequence[tuple[int, Any]]) -> list[list[list[int]]]:
            nonlocal scored
            scored += len(members)
            return tokens(members)

        began = time.perf_counter()
        texts = ((str(query), (query, document)) for query, document in pairs)
        options = {"longest": lengths.row, "multiple": self._mesh.size, **self._sizes}
        encoding.encode(folder, "pairs", texts, total, counted, self._score, **options)
        seconds = time.perf_counter() - began
        hosts.on_first(lambda: None)  # from here on the files of all hosts are there
        scores_P1, _ = encoding.load(folder, "pairs")
        return Scores(scores_P1[:, 0], seconds / scored if scored else None)
