"""Search by all hosts of a pod: the first one asks. In exact search each holds its share of the embeddings on its
devices, and of a saved index each has some shards.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from retrieval.common.runtime import hosts
from retrieval.runs.ranking import indexes
from retrieval.runs.ranking.collection import Collection
from retrieval.runs.ranking.indexes import Together
from retrieval.search import encoding, windows
from retrieval.search.encoding import StoredRows
from retrieval.search.exact import matching_queries, merge, no_results
from retrieval.search.index_kind import INDEXES, NO_OPTIONS, IndexKind, Options
from retrieval.search.windows import Index

Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
CollectionOf = Callable[[str], Collection]
"""Gives the collection of a name."""

# Queries that go to the other hosts at once.
_AT_ONCE = 8192


def lead(collection_of: CollectionOf, work: Callable[[Together], Any]) -> Any:
    """`work(together)` in the first process; the others search with it. All get what it returns, as JSON."""
    part = _Part(collection_of)
    return hosts.lead(lambda give: work(functools.partial(_together, part, give)), part.obey)


def to_all(
    collection_of: CollectionOf, search: Callable[[Together], tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """The scores and rows [Q, K] that `search(together)` finds in the first process, in all of them."""
    results: list[np.ndarray] = []

    def led(together: Together) -> Sequence[int]:
        results.extend(search(together))
        return results[0].shape

    shape = tuple(lead(collection_of, led))
    scores_QK, rows_QK = results or (np.zeros(shape, np.float32), np.zeros(shape, np.int32))
    scores_QK, rows_QK = multihost_utils.broadcast_one_to_all((scores_QK, rows_QK))
    return np.asarray(scores_QK), np.asarray(rows_QK)


def _together(
    part: "_Part", give: hosts.Give, kind: IndexKind, of: Collection, system: str, options: Options = NO_OPTIONS, /
) -> Index | None:
    """An index that all hosts search; None of a kind that has no parts."""
    if not (kind.spreads or kind.is_saved):
        return None
    folder = of.embeddings(system)
    owners_W = windows.owners(encoding.load_ids(folder, "candidates"))
    index = _PodIndex(part, give, [of.name, kind.name, system], options)
    return indexes.finished(index, options, lambda: StoredRows(folder, "candidates"), owners_W)


def _gathered(own: Index, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """What the shards of all hosts find, in each of them."""
    scores_HQK, rows_HQK = map(multihost_utils.process_allgather, own.search(queries_QE, k))
    return merge(list(zip(scores_HQK, rows_HQK)), len(queries_QE), k)


class _Part:
    """A host's parts of the indexes over a collection."""

    def __init__(self, collection_of: CollectionOf):
        self._collection_of, self._of = collection_of, ("", "")
        self._open: dict[tuple[str, ...], Search] = {}

    def obey(self, order: Sequence[Any]) -> None:
        """Does what the first process asks for."""
        what, place, *arguments = order
        if what == "open":
            self.open(place, *arguments)
        else:
            shape, k = arguments
            self.search(place, np.zeros(shape, np.float32), k)

    def open(self, place: Sequence[str], options: Options = NO_OPTIONS) -> int:
        """Takes this host's part; those of other embeddings are no longer needed. Returns the dimensions.

        Args:
          place: the collection, the kind of index, and the system whose embeddings it is over.
          options: of the kind, for an index that is built now.
        """
        name, kind, system = place
        if (name, system) != self._of:
            self._of, self._open = (name, system), {}
        collection = self._collection_of(name)
        rows = StoredRows(collection.embeddings(system), "candidates")
        if INDEXES[kind].spreads:
            mesh = jax.make_mesh((jax.device_count(),), ("rows",))  # over the devices of all hosts
            build: Callable[..., Index] = INDEXES[kind].build
            search = build(rows, options, mesh).search
        else:
            own = slice(hosts.number(), None, hosts.count())
            search = functools.partial(_gathered, indexes.open_shards(INDEXES[kind], collection, len(rows), own))
        self._open[name, kind, system] = search
        return rows.shape[1]

    def search(self, place: Sequence[str], queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """What all hosts find, in each of them; the queries are those of the first."""
        return self._open[tuple(place)](multihost_utils.broadcast_one_to_all(queries_QE), k)


class _PodIndex:
    """An index in the first process: every search is one of all hosts."""

    def __init__(self, part: _Part, give: hosts.Give, place: Sequence[str], options: Options):
        self._part, self._give, self._place = part, give, place
        give(["open", place, dict(options)])
        self._dimensions = part.open(place, options)

    def search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As that of the index of one host."""
        queries_QE = matching_queries(queries_QE, self._dimensions)
        results = [no_results(0, k)]
        for start in range(0, len(queries_QE), _AT_ONCE):
            part_QE = queries_QE[start : start + _AT_ONCE]
            self._give(["search", self._place, part_QE.shape, k])
            results.append(self._part.search(self._place, part_QE, k))
        scores, rows = zip(*results)
        return np.concatenate(scores), np.concatenate(rows)
