"""Documents that can be searched: what `Model.index` returns."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval.api import stored_index
from retrieval.api.document_texts import Document, candidates, checked_text, is_list
from retrieval.api.stored_index import StoredIndex
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime.store import is_url
from retrieval.data.sets.beir import Candidate
from retrieval.search.side_by_side import HYBRID, Search, SideBySide

_log = logging.getLogger(__name__)

Filter = Mapping[str, Any] | Callable[[Mapping[str, Any]], bool]
"""Which documents count: values that their metadata must have, one or one of a list; or a function of the metadata."""

_APPROXIMATE = "scann"
_QUERIES = 64  # that are filtered at a time: a strict filter looks through lists of all documents
_NO_METADATA: Mapping[str, Any] = {}


class Hit(NamedTuple):
    """A document that was found. A higher score is better; scores of different kinds of index do not compare.

    `section` is the heading that the text stands under, and `url` is where the document is on the web, where that is
    known. `metadata` is what the document's record has besides.
    """

    id: str
    title: str
    text: str
    score: float
    section: str = ""
    url: str = ""
    metadata: Mapping[str, Any] = _NO_METADATA

    def fields(self) -> dict[str, Any]:
        """The fields by name, for JSON; without metadata where there is none."""
        fields = self._asdict()
        return fields if self.metadata else {name: fields[name] for name in fields if name != "metadata"}


class DocumentIndex:
    """Documents, and one or two indexes over them. Two are merged: words first, then embeddings.

    Attributes:
      kind: of the indexes.
      system: whose lists these are: the kind of the one index, or 'hybrid'.
    """

    def __init__(
        self,
        documents: Sequence[Candidate],
        searchers: Mapping[str, Search],
        weight: float,
        depth: int,
        stored: StoredIndex | None = None,
    ):
        """Args:
        searchers: by the name of their kind.
        weight: of the second list, where there are two.
        depth: results of each of two lists that are merged; where more are asked for, as many as that.
        stored: what `save` writes; None for an index of a run, which keeps it.
        """
        self._documents, self._searchers, self._stored = documents, searchers, stored
        self._weight, self._depth = weight, min(depth, len(documents))
        self._metadata = stored.metadata if stored else [_NO_METADATA] * len(documents)
        self._systems = self._side_by_side(searchers)
        self.kind, self.system = " + ".join(searchers), HYBRID if len(searchers) > 1 else next(iter(searchers))

    def __len__(self) -> int:
        """How many documents, or passages of documents, there are."""
        return len(self._documents)

    def __repr__(self) -> str:
        return f"DocumentIndex({len(self):,} documents, {self.kind})"

    def search(self, query: str, k: int = 10, filter: Filter | None = None) -> list[Hit]:
        """The best `k` documents for a query, fewer where fewer fit.

        Args:
          filter: which documents count; `{"lang": "en"}`, `{"lang": ["en", "de"]}`, or a function of the metadata.

        Raises:
          UserError: the query is empty, or k is below 1.
        """
        return self.search_batch([query], k, filter)[0]

    def search_batch(self, queries: Sequence[str], k: int = 10, filter: Filter | None = None) -> list[list[Hit]]:
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
        systems = self._systems
        if filter is not None:
            allowed_N = np.array(list(map(_fitting(filter, self._metadata), self._metadata)), bool)
            each = self._searchers.items()
            systems = self._side_by_side({name: filtered(of, allowed_N, name == _APPROXIMATE) for name, of in each})
        scores_QK, rows_QK = systems.search(queries, min(k, len(self)), [self.system])[self.system]
        return [self._hits(*lists) for lists in zip(scores_QK, rows_QK)]

    def save(self, folder: str | Path) -> None:
        """Writes the index into a folder, which `retrieval.load_index` opens.

        Raises:
          UserError: it is that of a run, or there is something else in the folder.
        """
        if self._stored is None:
            raise UserError("the index is a part of its run: load the run, and call model.index()")
        if is_url(str(folder)):
            raise UserError(f"{folder}: an index is saved on this machine: name a folder of it, and copy that")
        stored_index.write(Path(folder).expanduser(), self._stored)

    def _side_by_side(self, searchers: Mapping[str, Search]) -> SideBySide:
        (first, search), *others = searchers.items()
        return SideBySide({first: search}, others[0][1] if others else None, self._weight, self._depth)

    def _hits(self, scores_K: np.ndarray, rows_K: np.ndarray) -> list[Hit]:
        """The hits of one query's list; none where its row is -1."""
        rows = [(row, score) for score, row in zip(scores_K.tolist(), rows_K.tolist()) if row >= 0]
        return [hit_of(self._documents[row], score)._replace(metadata=self._metadata[row]) for row, score in rows]


def filtered(search: Search, allowed_N: np.ndarray, is_approximate: bool) -> Search:
    """A search among some documents alone. More results are asked for until enough of them are allowed.

    So the lists are those of an index of these documents, if the search is exact; BM25's words weigh as in all of them.
    An approximate one may end before; the log says so.
    """
    total, allowed = len(allowed_N), int(allowed_N.sum())

    def of_some(queries: Sequence[str], k: int, *prompt: Any) -> tuple[np.ndarray, np.ndarray]:
        size, wanted = min(total, 4 * k), min(k, allowed)
        while True:
            scores_QS, rows_QS = map(np.asarray, search(queries, size, *prompt))
            fits_QS = (rows_QS >= 0) & allowed_N[rows_QS]
            lacks_Q = fits_QS.sum(axis=1) < wanted
            if not lacks_Q.any() or size == total or not (rows_QS[lacks_Q] >= 0).all(axis=1).any():
                break
            size = min(total, 4 * size)
        if is_approximate and lacks_Q.any():
            _log.warning("filter: the approximate index ended before %d queries had %d hits", lacks_Q.sum(), wanted)
        order_QK = np.argsort(~fits_QS, axis=1, kind="stable")[:, :k]
        scores_QS, rows_QS = np.where(fits_QS, scores_QS, -np.inf), np.where(fits_QS, rows_QS, -1)
        return np.take_along_axis(scores_QS, order_QK, axis=1), np.take_along_axis(rows_QS, order_QK, axis=1)

    def in_blocks(queries: Sequence[str], k: int, *prompt: Any) -> tuple[np.ndarray, np.ndarray]:
        blocks = [queries[start : start + _QUERIES] for start in range(0, len(queries), _QUERIES)]
        scores, rows = zip(*(of_some(block, k, *prompt) for block in blocks))
        return np.concatenate(scores), np.concatenate(rows)

    return in_blocks


def _fitting(filter: Filter, metadata: Sequence[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], bool]:
    """Whether the metadata of a document is what a filter wants; one that names what no document has is refused."""
    if callable(filter):
        return lambda of: bool(filter(of))
    if not isinstance(filter, Mapping):
        raise UserError(f"filter={filter!r}: a dict like {{'lang': 'en'}}, or a function of the metadata, is needed")
    lists = {name: list(value) if is_list(value) else [value] for name, value in filter.items()}
    wanted = json.loads(files.json_line(lists, "filter"))  # metadata are values of JSON, too
    if metadata and (lacking := [name for name in wanted if not any(name in of for of in metadata)]):
        raise UserError(f"filter: no document has '{lacking[0]}' as metadata; passages of files and of runs have none")
    return lambda of: all(of.get(name) in values for name, values in wanted.items())


def check_count(count: object, name: str = "k", least: int = 1) -> None:
    """Checks how many of something are asked for."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < least:
        raise UserError(f"{name}={count!r}: a whole number of at least {least} is needed")


def hits_of(documents: Sequence[Candidate], scores_K: np.ndarray, rows_K: np.ndarray) -> list[Hit]:
    """The hits of one query's list; none where its row is -1."""
    return [hit_of(documents[row], score) for score, row in zip(scores_K.tolist(), rows_K.tolist()) if row >= 0]


def hit_of(document: Candidate, score: float) -> Hit:
    """A document as a hit."""
    return Hit(document.id, document.title, document.text, score, document.section, document.url)


def hits_of_documents(documents: Sequence[Document | Hit]) -> list[Hit]:
    """Hits as they are; texts and records as hits of score 0, with their metadata."""
    documents = list(documents) if is_list(documents) else documents
    each = zip(documents, candidates_of(documents), stored_index.metadata_of(documents))
    return [of if isinstance(of, Hit) else hit_of(one, 0.0)._replace(metadata=more) for of, one, more in each]


def candidates_of(documents: Sequence[Document | Hit]) -> list[Candidate]:
    """Hits, texts and records as candidates."""
    records: Any = documents
    if is_list(documents):
        records = [each._asdict() if isinstance(each, Hit) else each for each in documents]
    return candidates(records)
