"""Ranked lists: what every index of a set finds for its queries, without the query itself."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrieval.data.sets.beir import Judged
from retrieval.errors import UserError
from retrieval.evaluation import metrics
from retrieval.search import encoding, exact, fusion, windows
from retrieval.search.index_kind import EXACT, INDEXES, IndexKind, Options
from retrieval.stages import costs, indexes, run_files
from retrieval.stages.collection import BASELINES, TRAINED, Collection
from retrieval.stages.fused_weight import FEWEST, best_weight
from retrieval.stages.indexes import Together

_EMBEDDED = "candidates-*-of-?????.npy"  # the files of embeddings

Among = Callable[[int, np.ndarray], np.ndarray]


class Ranking(NamedTuple):
    """A system's ranked lists for every query of a set.

    Attributes:
      system: its name in tables.
      scores, rows: [Q, depth], best first; -inf and -1 where there are fewer results.
      seconds: that the search took; None of lists that were read from a file.
      step: of training, of a system that searches with trained embeddings.
      recall: of an approximate index, the share of the exact results that it finds.
      weights: of the parts of a weighted sum; of a hybrid that of the words and that of the dense list.
      validation: how many validation questions chose the weights.
      parts: the names of the systems that it was fused from.
      on_validation: gives the lists for the validation questions, where there are some.
      among: scores [K] of some rows [K] for the query of a number; None where a system has no more than its lists.
      notes: what else the report says about it.
    """

    system: str
    scores: np.ndarray
    rows: np.ndarray
    seconds: float | None = None
    step: int | None = None
    recall: float | None = None
    weights: tuple[float, ...] = ()
    validation: int = 0
    parts: tuple[str, ...] = ()
    on_validation: Callable[[], fusion.Run] | None = None
    among: Among | None = None
    notes: Mapping[str, Any] = {}


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
        asked: Any = list(self.queries.values()) if of_words else self.embeddings_QE
        scores_QK, rows_QK = index.search(asked, min(depth + bool(self.own), self.candidates))
        return others(scores_QK, rows_QK, self.queries, self.own, depth)


class Search(NamedTuple):
    """How every set is searched.

    Attributes:
      depth: results of a query.
      words: names of kinds of index, those that come first.
      options: gives those of a kind of index that is built now.
      dense: names of further kinds of index of embeddings. They are built now, and not saved.
      step: of training; None where nothing was trained.
      weight: of the dense list in the hybrid, where no validation questions choose it.
      encoding: what the report says of how dear an embedding is.
    """

    depth: int
    words: Sequence[str]
    options: Callable[[IndexKind], Options]
    dense: Sequence[str] = ()
    step: int | None = None
    weight: float = fusion.DENSE_WEIGHT
    encoding: Mapping[str, Any] = {}


def rank(
    value: Judged,
    collection: Collection,
    searched: Search,
    validation: Validation | None = None,
    together: Together | None = None,
) -> list[Ranking]:
    """The ranked lists of every index of a set, and of the first one of words merged with exact search.

    Args:
      validation: questions that choose the weight of the dense list.
      together: opens what all hosts of a pod search.

    Raises:
      UserError: an index is damaged or older than the set, or two of them have one name.
    """
    lists = list(_rank(value, collection, searched, validation, together))
    check_names(value.name, lists)
    return lists


def _rank(
    value: Judged, collection: Collection, searched: Search, validation: Validation | None, together: Together | None
) -> Iterator[Ranking]:
    texts, depth = list(value.queries.values()), min(searched.depth, len(value.candidates))

    def ask(system: str, index: Any, queries: Any, **more: Any) -> Ranking:
        ranking = search(value, depth, system, index, queries)._replace(**more)
        if validation is None or "on_validation" in more:
            return ranking
        found = functools.partial(validation.search, index, isinstance(queries, list), depth)
        return ranking._replace(on_validation=found)

    def ask_dense(kind: IndexKind, system: str = TRAINED, **more: Any) -> Ranking:
        options = {} if kind.name == EXACT else searched.options(kind)
        index = together(kind, collection, system, options) if together and kind not in built else None
        if index is None:
            index = (indexes.build_dense if kind in built else indexes.open_dense)(kind, collection, options, system)
        queries_QE, _ = encoding.load(collection.embeddings(system), "queries")
        notes = dict(searched.encoding)
        if kind.is_saved or kind.name == EXACT:
            stored = (collection.index(kind.name), "*") if kind.is_saved else (collection.embeddings(system), _EMBEDDED)
            notes[costs.BYTES] = costs.bytes_of(stored[0].rglob(stored[1]), len(value.candidates))
        name = kind.system_of(index) if system == TRAINED else system
        return ask(name, index, queries_QE, **{"notes": notes, **more})

    first: Ranking | None = None
    for kind in indexes.kinds_of_words_of(collection, searched.words):
        index = indexes.open_words(kind, collection, len(value.candidates))
        among = functools.partial(_by_words, index, len(value.candidates), texts)
        told = {**costs.FREE, costs.BYTES: costs.bytes_of(collection.index(kind.name).rglob("*"), len(index))}
        ranking = ask(kind.system_of(index), index, texts, among=among, notes=told)
        first = first or ranking
        yield ranking
    if not collection.has_embeddings():
        return
    built, _ = indexes.dense_kinds_beside(collection, searched.dense)
    for system in filter(collection.has_embeddings, BASELINES):
        collection.check_embeddings(value, system)
        yield ask_dense(INDEXES[EXACT], system, on_validation=None, among=_Embedded(collection, system))
    collection.check_embeddings(value)
    dense = ask_dense(INDEXES[EXACT], step=searched.step, among=_Embedded(collection, TRAINED))
    yield dense
    for kind in (*indexes.dense_kinds_of(collection), *built):
        ranking = ask_dense(kind, step=searched.step)
        yield ranking._replace(recall=exact.recall(dense.rows, ranking.rows))
    if first:
        yield _hybrid(first, dense, validation.golds if validation else (), depth, searched.weight)


def check_names(name: str, lists: Sequence[Ranking]) -> None:
    """Checks that no two systems of a set have one name, in tables or as run files.

    Raises:
      UserError: two have.
    """
    systems: dict[str, str] = {}
    for ranking in lists:
        if (tag := run_files.tag(ranking.system)) in systems:
            same = run_files.same_tag(systems[tag], ranking.system)
            raise UserError(f"set '{name}': {same}; give one another name")
        systems[tag] = ranking.system


def _by_words(index: Any, candidates: int, texts: Sequence[str], number: int, rows_K: np.ndarray) -> np.ndarray:
    """Scores [K] of some candidates for a query; 0 where they share no word."""
    (scores_N,), (rows_N,) = index.search([texts[number]], candidates)
    of_rows = np.zeros(candidates, np.float32)
    of_rows[rows_N[rows_N >= 0]] = scores_N[rows_N >= 0]
    return of_rows[rows_K]


class _Embedded:
    """Scores of some candidates by their embeddings, which are read at the first call."""

    def __init__(self, collection: Collection, system: str):
        self._folder = collection.embeddings(system)

    @functools.cached_property
    def _read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        embeddings_WE, ids = encoding.load(self._folder, "candidates")
        return embeddings_WE, windows.owners(ids), encoding.load(self._folder, "queries")[0]

    def __call__(self, number: int, rows_K: np.ndarray) -> np.ndarray:
        """Scores [K] for the query of a number; a candidate's is that of its best window."""
        embeddings_WE, owners_W, queries_QE = self._read
        first_K, end_K = np.searchsorted(owners_W, rows_K), np.searchsorted(owners_W, rows_K, side="right")
        return np.array(
            [(embeddings_WE[first:end] @ queries_QE[number]).max() for first, end in zip(first_K, end_K)], np.float32
        )


def _hybrid(
    words: Ranking, dense: Ranking, golds: Sequence[Sequence[int]], depth: int, weight: float = fusion.DENSE_WEIGHT
) -> Ranking:
    validation = 0
    if len(golds) >= FEWEST and words.on_validation and dense.on_validation:
        by_words, by_dense = words.on_validation(), dense.on_validation()
        weight = best_weight(lambda weight: fusion.hybrid(by_words, by_dense, weight, depth)[1], golds)
        validation = len(golds)
    began = time.perf_counter()
    fused = fusion.hybrid((words.scores, words.rows), (dense.scores, dense.rows), weight, words.rows.shape[1])
    seconds = (words.seconds or 0) + (dense.seconds or 0) + time.perf_counter() - began
    parts = words.system, dense.system
    return Ranking("hybrid", *fused, seconds, weights=(1 - weight, weight), validation=validation, parts=parts)


def search(value: Judged, depth: int, system: str, index: Any, queries: Any) -> Ranking:
    """The first `depth` candidates of every query, without the query itself."""
    # Where a candidate may be the query itself, one more is asked for: dropping it leaves a list of full length.
    deep = min(depth + bool(value.own), len(value.candidates))
    # Compilation is not part of the search, and an index of words has none.
    index.search(queries[: 1 if isinstance(queries, list) else exact.compiling(len(queries))], deep)
    began = time.perf_counter()
    scores, rows = index.search(queries, deep)
    seconds = time.perf_counter() - began
    return Ranking(system, *others(scores, rows, value.queries, value.own, depth), seconds)


def others(
    scores: np.ndarray, rows: np.ndarray, queries: Iterable[str], row_of_query: Mapping[str, int], depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first `depth` results that are not the query itself."""
    scores, rows = metrics.drop_self_matches(scores, rows, queries, row_of_query)
    return scores[:, :depth], rows[:, :depth]
