"""Documents that can be searched: what `Model.index` returns."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from retrieval.api.document_texts import checked_text, is_list
from retrieval.common.errors import UserError
from retrieval.data.sets.beir import Candidate
from retrieval.search.side_by_side import HYBRID, Search, SideBySide


class Hit(NamedTuple):
    """A document that was found. A higher score is better; scores of different kinds of index do not compare.

    `section` is the heading that the text stands under, and `url` is where the document is on the web, where that is
    known.
    """

    id: str
    title: str
    text: str
    score: float
    section: str = ""
    url: str = ""


class DocumentIndex:
    """Documents, and one or two indexes over them. Two are merged: words first, then embeddings.

    Attributes:
      kind: of the indexes.
      system: whose lists these are: the kind of the one index, or 'hybrid'.
    """

    def __init__(self, documents: Sequence[Candidate], searchers: Mapping[str, Search], weight: float, depth: int):
        """Args:
        searchers: by the name of their kind.
        weight: of the second list, where there are two.
        depth: results of each of two lists that are merged; where more are asked for, as many as that.
        """
        (first, search), *others = searchers.items()
        self._documents, dense = documents, others[0][1] if others else None
        self._systems = SideBySide({first: search}, dense, weight, min(depth, len(documents)))
        self.kind, self.system = " + ".join(searchers), HYBRID if others else first

    def __len__(self) -> int:
        """How many documents, or passages of documents, there are."""
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
          UserError: as `search`, or it is no list.
        """
        if not is_list(queries):
            raise UserError("search_batch takes a list of queries; for one query call search")
        queries = list(queries)
        for place, query in enumerate(queries):
            if not checked_text(query, f"query {place}").strip():
                raise UserError(f"query {place} is empty; leave it out")
        check_count(k)
        if not queries:
            return []
        scores_QK, rows_QK = self._systems.search(queries, min(k, len(self)), [self.system])[self.system]
        return [hits_of(self._documents, *lists) for lists in zip(scores_QK, rows_QK)]


def check_count(k: object) -> None:
    """Checks how many results are asked for: a whole number of at least 1."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise UserError(f"k={k!r}: a whole number of at least 1 is needed")


def hits_of(documents: Sequence[Candidate], scores_K: np.ndarray, rows_K: np.ndarray) -> list[Hit]:
    """The hits of one query's list; none where its row is -1."""
    return [hit_of(documents[row], score) for score, row in zip(scores_K.tolist(), rows_K.tolist()) if row >= 0]


def hit_of(document: Candidate, score: float) -> Hit:
    """A document as a hit."""
    return Hit(document.id, document.title, document.text, score, document.section, document.url)
