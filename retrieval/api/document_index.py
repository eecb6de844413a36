"""Documents that can be searched: what `Model.index` returns."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.search import fusion

_DEEPEST = 100  # of each list that a hybrid merges, at least


class Hit(NamedTuple):
    """A document that was found. A higher score is better; scores of different kinds of index do not compare."""

    id: str
    title: str
    text: str
    score: float


class Searcher(Protocol):
    """Scores and rows [Q, k] of texts, best first; -inf and -1 where fewer were found."""

    def __call__(self, queries: Sequence[str], k: int, /) -> tuple[np.ndarray, np.ndarray]: ...


class DocumentIndex:
    """Documents, and one or two indexes over them. Two are merged: words first, then embeddings."""

    def __init__(self, documents: Sequence[Candidate], searchers: Mapping[str, Searcher], weight: float):
        """Args:
        searchers: by the name of their kind.
        weight: of the second list, where there are two.
        """
        self.kind = " + ".join(searchers)
        self._documents, self._searchers, self._weight = documents, list(searchers.values()), weight

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self._documents)

    def __repr__(self) -> str:
        return f"DocumentIndex({len(self):,} documents, {self.kind})"

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The best `k` documents for a query, fewer where fewer fit.

        Raises:
          UserError: the query is empty, or k is below 1.
        """
        return self.search_batch([query], k)[0]

    def search_batch(self, queries: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """`search` for many queries at once.

        Raises:
          UserError: as `search`, or it is one text.
        """
        if isinstance(queries, str):
            raise UserError("search_batch takes a list of queries; for one query call search")
        for place, query in enumerate(queries):
            if not isinstance(query, str) or not query.strip():
                raise UserError(f"query {place} is empty or no text; leave it out")
        if k < 1:
            raise UserError(f"k={k}: at least 1 is needed")
        if not queries:
            return []
        scores_QK, rows_QK = self._find(queries, min(k, len(self)))
        return [list(itertools.chain.from_iterable(map(self._hit, *lists))) for lists in zip(scores_QK, rows_QK)]

    def _find(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        if len(self._searchers) == 1:
            return self._searchers[0](queries, k)
        deep = min(max(k, _DEEPEST), len(self))
        words, dense = (search(queries, deep) for search in self._searchers)
        return fusion.hybrid(words, dense, self._weight, k)

    def _hit(self, score: Any, row: Any) -> list[Hit]:
        if row < 0:
            return []
        document = self._documents[int(row)]
        return [Hit(document.id, document.title, document.text, float(score))]
