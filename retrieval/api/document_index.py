"""Documents that can be searched: what `Model.index` returns."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from retrieval.api.document_texts import Document, checked_text, is_list
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.search.side_by_side import HYBRID, Search, SideBySide
from retrieval.segments.state import Changes


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


class Opened(NamedTuple):
    """What is searched of documents at one time.

    Attributes:
      searchers: by the name of their kind.
      generation: its number; 0 before the first change.
    """

    documents: Sequence[Candidate]
    searchers: Mapping[str, Search]
    generation: int = 0


class Changing(Protocol):
    """Where the documents of an index are changed."""

    def add(self, documents: Sequence[Document]) -> Changes:
        """As `DocumentIndex.add`."""
        ...

    def delete(self, ids: Sequence[str]) -> Changes:
        """As `DocumentIndex.delete`."""
        ...

    def merge_behind(self, then: Callable[[], Any]) -> None:
        """Puts in order what changes have left, where that is due, in a thread, and calls `then`."""
        ...

    def opened(self) -> Opened | None:
        """What there is after a change; None before the first one."""
        ...


class DocumentIndex:
    """Documents, and one or two indexes over them. Two are merged: words first, then embeddings.

    Threads may search while another one changes the documents: a search sees all of a change, or nothing.

    Attributes:
      kind: of the indexes.
      system: whose lists these are: the kind of the one index, or 'hybrid'.
    """

    def __init__(self, opened: Opened, changing: Changing, weight: float, depth: int):
        """Args:
        weight: of the second list, where there are two.
        depth: results of each of two lists that are merged; where more are asked for, as many as that.
        """
        self._weight, self._depth, self._changing, self._opening = weight, depth, changing, threading.Lock()
        self.kind = " + ".join(opened.searchers)
        first, *others = opened.searchers
        self.system = HYBRID if others else first
        self._state = self._side_by_side(opened)

    def _side_by_side(self, opened: Opened) -> tuple[Opened, SideBySide]:
        (first, search), *others = opened.searchers.items()
        dense, depth = others[0][1] if others else None, min(self._depth, len(opened.documents))
        return opened, SideBySide({first: search}, dense, self._weight, depth)

    def __len__(self) -> int:
        """How many documents, or passages of documents, there are."""
        return len(self._state[0].documents)

    @property
    def generation(self) -> int:
        """The number of what is searched: each change makes the next, and so does putting in order what it left."""
        return self._state[0].generation

    def add(self, documents: Sequence[Document]) -> Changes:
        """Adds records with an 'id' and a 'text', and perhaps a 'title' and a 'url', to the documents.

        One whose id is there already takes the place of that document; where nothing differs it stays. Those of a
        run's own index are cut into passages, and stay in its work directory: its server finds them, too.

        Returns:
          How many were added, replaced, deleted (none) and left as they were.

        Raises:
          UserError: one has no id or no text, two have one id, or an index of this kind cannot change. Then none is
            added.
        """
        return self._changed(self._changing.add(documents))

    def delete(self, ids: Sequence[str]) -> Changes:
        """Deletes documents by their ids.

        Raises:
          UserError: one is not there; then none is deleted.
        """
        return self._changed(self._changing.delete(ids))

    def _changed(self, changes: Changes) -> Changes:
        self._open()
        self._changing.merge_behind(self._open)
        return changes

    def _open(self) -> None:
        with self._opening:  # so that none puts an older one in the place of a newer one
            if opened := self._changing.opened():
                self._state = self._side_by_side(opened)

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
        (documents, *_), systems = self._state  # of one generation
        if not queries or not len(documents):
            return [[] for _ in queries]
        scores_QK, rows_QK = systems.search(queries, min(k, len(documents)), [self.system])[self.system]
        return [hits_of(documents, *lists) for lists in zip(scores_QK, rows_QK)]


def check_count(k: object) -> None:
    """Checks how many results are asked for.

    Raises:
      UserError: it is no whole number, or below 1.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise UserError(f"k={k!r}: a whole number of at least 1 is needed")


def hits_of(documents: Sequence[Candidate], scores_K: np.ndarray, rows_K: np.ndarray) -> list[Hit]:
    """The hits of one query's list; none where its row is -1."""
    return [hit_of(documents[row], score) for score, row in zip(scores_K.tolist(), rows_K.tolist()) if row >= 0]


def hit_of(document: Candidate, score: float) -> Hit:
    """A document as a hit."""
    return Hit(document.id, document.title, document.text, score, document.section, document.url)
