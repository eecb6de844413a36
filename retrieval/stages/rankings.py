"""Ranked lists: what every index of a set finds for its queries, without the query itself."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrieval.data.sets.beir import Judged
from retrieval.errors import UserError
from retrieval.evaluation import metrics
from retrieval.search import encoding, exact, fusion, tuning
from retrieval.search.index_kind import EXACT, INDEXES, IndexKind, Options
from retrieval.stages import indexes
from retrieval.stages.collection import TRAINED, UNTRAINED, Collection


class Ranking(NamedTuple):
    """A system's ranked lists for every query of a set.

    Attributes:
      system: its name in tables.
      scores, rows: [Q, depth], best first; -inf and -1 where there are fewer results.
      seconds: that the search took.
      step: of training, of a system that searches with trained embeddings.
      recall: of an approximate index, the share of the exact results that it finds.
      weight: of the dense list in a weighted hybrid.
      validation: how many validation questions chose the weight.
    """

    system: str
    scores: np.ndarray
    rows: np.ndarray
    seconds: float
    step: int | None = None
    recall: float | None = None
    weight: float | None = None
    validation: int = 0


def rank(
    value: Judged,
    collection: Collection,
    *,
    depth: int,
    words: Sequence[str],
    options: Callable[[IndexKind], Options],
    step: int | None,
    weigh: Callable[[Any, Any], tuple[float, int]],
) -> list[Ranking]:
    """The ranked lists of every index of a set, and of the first one of words merged with exact search.

    Args:
      depth: results of a query.
      words: names of kinds of index, those that come first.
      options: gives those of a kind that is built now.
      step: of training.
      weigh: chooses the weight of the dense list, from both indexes: see `hybrid_weight.choose`.

    Raises:
      UserError: an index is damaged or older than the set, or two of them have one name.
    """
    lists = list(_rank(value, collection, min(depth, len(value.candidates)), words, options, step, weigh))
    names = [ranking.system for ranking in lists]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"set '{value.name}': two indexes are named '{twice[0]}' in tables; give one another `system`")
    return lists


def _rank(
    value: Judged,
    collection: Collection,
    depth: int,
    words: Sequence[str],
    options: Callable[[IndexKind], Options],
    step: int | None,
    weigh: Callable[[Any, Any], tuple[float, int]],
) -> Iterator[Ranking]:
    ask, texts = functools.partial(search, value, depth), list(value.queries.values())
    first: tuple[Any, Ranking] | None = None
    for kind in indexes.kinds_of_words_of(collection, words):
        index = indexes.open_words(kind, collection, len(value.candidates))
        ranking = ask(kind.system_of(index), index, texts)
        first = first or (index, ranking)
        yield ranking
    if not collection.has_embeddings():
        return
    if collection.has_embeddings(UNTRAINED):
        yield ask("untrained", *_exact(value, collection, depth, UNTRAINED))
    trained, queries_QE = _exact(value, collection, depth, TRAINED)
    dense = ask(INDEXES[EXACT].system, trained, queries_QE, step)
    yield dense
    for kind in indexes.dense_kinds_of(collection):
        index = indexes.open_dense(kind, collection, options(kind), depth)
        ranking = ask(kind.system_of(index), index, queries_QE, step)
        yield ranking._replace(recall=float(tuning.recalls(dense.rows, ranking.rows).mean()))
    if first:
        yield _hybrid(first[1], dense, *weigh(first[0], trained))


def _exact(value: Judged, collection: Collection, depth: int, system: str) -> tuple[Any, np.ndarray]:
    """Exact search over a set's candidates, and the embeddings of its queries."""
    collection.check_embeddings(value, system)
    queries_QE, _ = encoding.load(collection.embeddings(system), "queries")
    return indexes.open_dense(INDEXES[EXACT], collection, {}, depth, system), queries_QE


def _hybrid(words: Ranking, dense: Ranking, weight: float, validation: int) -> Ranking:
    began = time.perf_counter()
    fused = fusion.hybrid((words.scores, words.rows), (dense.scores, dense.rows), weight, words.rows.shape[1])
    seconds = words.seconds + dense.seconds + time.perf_counter() - began
    return Ranking("hybrid", *fused, seconds, weight=weight, validation=validation)


def search(value: Judged, depth: int, system: str, index: Any, queries: Any, step: int | None = None) -> Ranking:
    """The first `depth` candidates of every query, without the query itself."""
    # Where a candidate may be the query itself, one more is asked for: dropping it leaves a list of full length.
    deep = min(depth + bool(value.own), len(value.candidates))
    # Compilation is not part of the search, and an index of words has none.
    index.search(queries[: 1 if isinstance(queries, list) else exact.compiling(len(queries))], deep)
    began = time.perf_counter()
    scores, rows = index.search(queries, deep)
    seconds = time.perf_counter() - began
    return Ranking(system, *others(scores, rows, value.queries, value.own, depth), seconds, step)


def others(
    scores: np.ndarray, rows: np.ndarray, queries: Iterable[str], own: Mapping[str, int], depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first `depth` results that are not the query itself."""
    scores, rows = metrics.drop_self_matches(scores, rows, queries, own)
    return scores[:, :depth], rows[:, :depth]
