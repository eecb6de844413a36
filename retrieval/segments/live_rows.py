"""What of a state is searched: the passages of living documents, in the order of their ids, as if there were no others.

So an index of these has the rows, the scores and the ties of one that is built from the documents that are there.

Shape letters: L living passages, V their embeddings, W embeddings of an index, Q queries, K results, E dimensions.
"""

import bisect
import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from retrieval.data.sets.beir import Candidate
from retrieval.search import index_shards
from retrieval.search.bm25_kind import Bm25Kind
from retrieval.search.exact import no_results
from retrieval.search.index_kind import EXACT, INDEXES, IndexKind, Options
from retrieval.search.side_by_side import Search
from retrieval.search.windows import Index
from retrieval.search.word_counts import WordCounts
from retrieval.search.words import Words
from retrieval.segments.segment import Segment
from retrieval.segments.state import State

_MORE = 10  # results that an index with dead rows is asked for besides


class LiveRows(Sequence[Candidate]):
    """The passages, read where they are asked for.

    Attributes:
      places_L: of each its place among those of all segments.
      vectors: their embeddings.
      owner_V: the passage of each, ascending.
    """

    def __init__(self, state: State, url_of: Callable[[Candidate], str] = operator.attrgetter("url")):
        """Args:
        url_of: the address that a passage has on the web, '' for none.
        """
        self._segments, self._url_of = state.segments, url_of
        self._starts = list(itertools.accumulate((len(each.ids) for each in state.segments), initial=0))
        living = [~dead[each.document_N] for each, dead in zip(state.segments, state.dead)]
        places = np.flatnonzero(np.concatenate([np.zeros(0, bool), *living]))
        ids = list(itertools.chain.from_iterable(each.ids for each in state.segments))
        self.places_L = np.array(sorted(places.tolist(), key=ids.__getitem__), np.int64)
        row = np.full(len(ids), -1, np.int32)  # of every passage among the living ones
        row[self.places_L] = np.arange(len(places))
        self._rows = [row[start + each.owner_W] for start, each in zip(self._starts, state.segments)]
        row_W = np.concatenate([np.zeros(0, np.int32), *self._rows])
        is_living = np.flatnonzero(row_W >= 0)
        embedded_V = is_living[np.argsort(row_W[is_living], kind="stable")]
        self.owner_V, self.vectors = row_W[embedded_V], LiveVectors(state.segments, embedded_V)

    def __len__(self) -> int:
        return len(self.places_L)

    def __getitem__(self, row: int) -> Candidate:  # pyright: ignore[reportIncompatibleMethodOverride]
        of, at = self._place(row)
        passage = of.passages[at]
        return dataclasses.replace(passage, url=self._url_of(passage))

    def find(self, id: str) -> Candidate | None:
        """The passage that has an id; None where none has."""
        row = bisect.bisect_left(range(len(self)), id, key=self.id)
        return self[row] if row < len(self) and self.id(row) == id else None

    def id(self, row: int) -> str:
        """That of a passage, of which no more is read."""
        of, at = self._place(row)
        return of.ids[at]

    def _place(self, row: int) -> tuple[Segment, int]:
        """The segment of a passage, and its row there."""
        place = int(self.places_L[row])
        number = bisect.bisect_right(self._starts, place) - 1
        return self._segments[number], place - self._starts[number]

    def words(self, kind: Bm25Kind, options: Options, of: Words) -> Search:
        """Searches the index of words of the passages."""
        if not len(self):
            return _Nothing().search
        counts = WordCounts.joined([each.counts[kind.name] for each in self._segments], self.places_L)
        return kind.of_counts(counts, options, of).search if counts.vocabulary else _Nothing().search

    def dense(self, kind: IndexKind, options: Options) -> Index:
        """The index of the embeddings, whose rows are those of `vectors`.

        Those of segments that have an index are searched by that, the others one by one.
        """
        if not len(self):
            return _Nothing()
        if not kind.is_saved:
            return kind.build(self.vectors if kind.spreads else self.vectors[:], options)
        row_W = np.full(self.vectors.stored, -1, np.int64)  # of every embedding among the living ones
        row_W[self.vectors.places_V] = np.arange(len(self.vectors))
        parts, others = [], np.zeros(len(self.vectors), bool)
        for each, start in zip(self._segments, self.vectors.starts):
            rows = row_W[start : start + len(each.owner_W)]
            if each.dense and (rows >= 0).any():
                parts.append(_Mapped(each.dense, rows))
            elif not each.dense:
                others[rows[rows >= 0]] = True
        if others.any():
            rows = LiveVectors(self._segments, self.vectors.places_V[others])
            parts.append(_Mapped(INDEXES[EXACT].build(rows, {}), np.flatnonzero(others)))
        return _Merged(parts)


class LiveVectors:
    """Embeddings [V, E] of several segments, read where they are asked for; slices are arrays.

    Attributes:
      form: how they are stored, which is as float32.
      places_V: of each its place among those of all segments.
      starts: the place of the first one of each segment.
      stored: how many all segments have.
    """

    form = None

    def __init__(self, segments: Sequence[Segment], places_V: np.ndarray):
        self._vectors = [each.vectors for each in segments]
        *self.starts, self.stored = itertools.accumulate((len(each.owner_W) for each in segments), initial=0)
        self.places_V = places_V

    @property
    def shape(self) -> tuple[int, int]:
        """V and E."""
        return len(self), next((each.shape[1] for each in self._vectors if each is not None), 0)

    def __len__(self) -> int:
        return len(self.places_V)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self.take(np.arange(len(self))[rows])

    def take(self, rows_M: np.ndarray) -> np.ndarray:
        """Some rows [M, E], in any order."""
        places_M = self.places_V[rows_M]
        result_ME = np.empty((len(places_M), self.shape[1]), np.float32)
        numbers_M = np.searchsorted(self.starts, places_M, side="right") - 1
        for number in np.unique(numbers_M).tolist():
            vectors, here_M = self._vectors[number], numbers_M == number
            assert vectors is not None, "a state has embeddings in all segments or in none"
            result_ME[here_M] = vectors[places_M[here_M] - self.starts[number]]  # pyright: ignore[reportArgumentType]
        return result_ME


class _Mapped:
    """An index over some rows as one over the living ones, with no result for a dead row."""

    def __init__(self, index: Index, row_W: np.ndarray):
        """Args:
        row_W: the living row of each row of the index, -1 for a dead one.
        """
        self._index, self._row_W, self._living = index, row_W, int((row_W >= 0).sum())

    def search(self, queries_QE: np.ndarray, k: int, /) -> tuple[np.ndarray, np.ndarray]:
        """As many results as there would be without the dead rows; where these took too many places, it asks again."""
        wanted, most = min(k, self._living), len(self._row_W)
        asked = wanted if self._living == most else min(math.ceil(wanted * most / self._living) + _MORE, most)
        while True:
            scores_QX, rows_QX = self._index.search(queries_QE, asked)
            rows_QX = np.where(rows_QX < 0, -1, self._row_W[rows_QX])
            if most in (asked, self._living) or ((rows_QX >= 0).sum(axis=1) >= wanted).all():
                break
            asked = min(2 * asked, most)
        return index_shards.merge([(np.where(rows_QX < 0, -np.inf, scores_QX), rows_QX)], len(queries_QE), k)


class _Merged:
    """Several indexes over the same rows, of which each has some."""

    def __init__(self, parts: Sequence[Index]):
        self._parts = parts

    def search(self, queries_QE: np.ndarray, k: int, /) -> tuple[np.ndarray, np.ndarray]:
        return index_shards.merge([part.search(queries_QE, k) for part in self._parts], len(queries_QE), k)


class _Nothing:
    """An index of no passage."""

    def search(self, queries: Any, k: int, /) -> tuple[np.ndarray, np.ndarray]:
        return no_results(len(queries), k)
