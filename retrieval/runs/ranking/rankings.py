"""Ranked lists: what every index of a set finds for its queries, without the query itself."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrieval.data.sets.beir import Judged
from retrieval.runs.ranking import costs, fused, indexes
from retrieval.runs.ranking.collection import BASELINES, TRAINED, Collection
from retrieval.runs.ranking.indexes import Together
from retrieval.runs.ranking.ranked_lists import Among, Ranking, others
from retrieval.search import encoding, exact, fusion, windows
from retrieval.search.index_kind import EXACT, INDEXES, IndexKind, Options

_EMBEDDED = "candidates-*-of-?????.npy"  # the files of embeddings


class Validation(NamedTuple):
    """The validation questions of a set.

    Attributes:
      queries: id -> text.
      embeddings_QE: of the questions; no rows where there are none.
      golds: rows of each question's right candidates.
      own: id -> the row of the candidate that is the question itself.
      candidates: how many the set has.
    """

    queries: Mapping[str, str]
    embeddings_QE: np.ndarray
    golds: Sequence[Sequence[int]]
    own: Mapping[str, int]
    candidates: int

    def search(self, index: Any, of_words: bool, depth: int) -> fusion.Run:
        """The first `depth` candidates of every question, without the question itself."""
        depth = min(depth, self.candidates)
        queries: Any = list(self.queries.values()) if of_words else self.embeddings_QE
        return others(index.search(queries, min(depth + bool(self.own), self.candidates)), self, depth)


class Search(NamedTuple):
    """How every set is searched.

    Attributes:
      depth: results of a query.
      words: names of kinds of index, those that come first.
      options: gives those of a kind of index that is built now.
      step: of training; None where nothing was trained.
      weight: of the dense list in the hybrid, where no validation questions of the run choose it.
      encoding: what the report says of how dear an embedding is.
    """

    depth: int
    words: Sequence[str]
    options: Callable[[IndexKind], Options]
    step: int | None = None
    weight: fused.Weight = fused.USUAL
    encoding: Mapping[str, Any] = {}


class Ranker:
    """Searches a set with every index over it, and merges the first one of words with exact search."""

    def __init__(
        self,
        value: Judged,
        collection: Collection,
        searched: Search,
        validation: Validation | None = None,
        together: Together | None = None,
    ):
        """Args:
        validation: questions that choose the weight of the dense list.
        together: opens what all hosts of a pod search.
        """
        self._value, self._collection, self._searched = value, collection, searched
        self._validation, self._together = validation, together
        self._depth = min(searched.depth, len(value.candidates))

    def lists(self) -> list[Ranking]:
        """The ranked lists of all systems.

        Raises:
          UserError: an index is damaged or older than the set.
        """
        words = [self._words(kind) for kind in indexes.kinds_of_words_of(self._collection, self._searched.words)]
        if not self._collection.has_embeddings():
            return words
        dense, *others = self._dense()
        encoded = filter(self._collection.has_embeddings, BASELINES)
        baselines = [self._embedded(INDEXES[EXACT], system) for system in encoded]
        golds = self._validation.golds if self._validation else ()
        hybrids = [fused.hybrid(of, dense, golds, self._depth, self._searched.weight) for of in words[:1]]
        return [*words, *baselines, dense, *others, *hybrids]

    def _dense(self) -> Iterator[Ranking]:
        """Exact search with the trained embeddings, then other indexes of them."""
        dense = self._embedded(INDEXES[EXACT], TRAINED)._replace(step=self._searched.step)
        yield dense
        for kind in indexes.dense_kinds_of(self._collection):
            ranking = self._embedded(kind, TRAINED)
            recall = exact.recall(dense.rows, ranking.rows)
            yield ranking._replace(step=self._searched.step, recall=recall, among=None)

    def _words(self, kind: IndexKind) -> Ranking:
        candidates, texts = len(self._value.candidates), list(self._value.queries.values())
        index = indexes.open_words(kind, self._collection, candidates)
        among = functools.partial(by_words, index, candidates, texts)
        of_index = self._collection.index(kind.name).rglob("*")
        notes = {**costs.FREE, costs.BYTES: costs.bytes_of(of_index, len(index))}
        return self._ask(index, texts, kind.system_of(index))._replace(among=among, notes=notes)

    def _embedded(self, kind: IndexKind, system: str) -> Ranking:
        """What an index finds by the embeddings of a system."""
        collection, notes = self._collection, dict(self._searched.encoding)
        collection.check_embeddings(self._value, system)
        options = {} if kind.name == EXACT else self._searched.options(kind)
        index = self._together(kind, collection, system, options) if self._together else None
        if index is None:
            index = indexes.open_dense(kind, collection, options, system)
        queries_QE, _ = encoding.load(collection.embeddings(system), "queries")
        if kind.is_saved or kind.name == EXACT:
            stored = (collection.index(kind.name), "*") if kind.is_saved else (collection.embeddings(system), _EMBEDDED)
            notes[costs.BYTES] = costs.bytes_of(stored[0].rglob(stored[1]), len(self._value.candidates))
        name = kind.system_of(index) if system == TRAINED else system
        ranking = self._ask(index, queries_QE, name)._replace(notes=notes, among=by_embeddings(collection, system))
        return ranking if system == TRAINED else ranking._replace(on_validation=None)

    def _ask(self, index: Any, queries: Any, system: str) -> Ranking:
        """What an index finds, with its lists for the validation questions."""
        ranking = search(self._value, self._depth, system, index, queries)
        if self._validation is None:
            return ranking
        on_validation = functools.partial(self._validation.search, index, isinstance(queries, list), self._depth)
        return ranking._replace(on_validation=on_validation)


def by_words(index: Any, candidates: int, texts: Sequence[str], number: int, rows_K: np.ndarray) -> np.ndarray:
    """Scores [K] of some candidates for a query; 0 where they share no word."""
    (scores_N,), (rows_N,) = index.search([texts[number]], candidates)
    of_rows = np.zeros(candidates, np.float32)
    of_rows[rows_N[rows_N >= 0]] = scores_N[rows_N >= 0]
    return of_rows[rows_K]


def by_embeddings(collection: Collection, system: str) -> Among:
    """Scores [K] of some candidates for the query of a number, by embeddings, which are read at the first call.

    A candidate's is that of its best window.
    """
    folder = collection.embeddings(system)

    @functools.cache
    def read() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        embeddings_WE, ids = encoding.load(folder, "candidates")
        return embeddings_WE, windows.owners(ids), encoding.load(folder, "queries")[0]

    def among(number: int, rows_K: np.ndarray) -> np.ndarray:
        embeddings_WE, owners_W, queries_QE = read()
        query_E = queries_QE[number]
        first_K, end_K = np.searchsorted(owners_W, rows_K), np.searchsorted(owners_W, rows_K, side="right")
        return np.array([(embeddings_WE[a:b] @ query_E).max() for a, b in zip(first_K, end_K)], np.float32)

    return among


def search(value: Judged, depth: int, system: str, index: Any, queries: Any) -> Ranking:
    """The first `depth` candidates of every query, without the query itself."""
    # Where a candidate may be the query itself, one more is asked for: dropping it leaves a list of full length.
    deep = min(depth + bool(value.own), len(value.candidates))
    # Compilation is not part of the search, and an index of words has none.
    index.search(queries[: 1 if isinstance(queries, list) else exact.compiling(len(queries))], deep)
    began = time.perf_counter()
    scores, rows = index.search(queries, deep)
    seconds = time.perf_counter() - began
    return Ranking(system, *others((scores, rows), value, depth), seconds)
