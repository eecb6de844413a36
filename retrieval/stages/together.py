"""Exact search by all hosts of a pod: the first one asks, and each holds its share of the embeddings on its devices."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from retrieval.runtime import orders
from retrieval.search import encoding, windows
from retrieval.search.exact import ExactIndex, matching_queries, no_results
from retrieval.search.stored_rows import StoredRows
from retrieval.search.windows import Index
from retrieval.stages.collection import Collection
from retrieval.stages.indexes import OpenExact

# The folder of the embeddings of a collection, by its name, by a system.
EmbeddingsOf = Callable[[str, str], Path]

# Queries that go to the other hosts at once.
_AT_ONCE = 8192


def lead(embeddings_of: EmbeddingsOf, work: Callable[[OpenExact], Any]) -> Any:
    """`work(open_exact)` in the first process; the others search with it. All get what it returns, as JSON."""
    share = _Share(embeddings_of)

    def led(give: orders.Give) -> Any:
        def open_exact(collection: Collection, system: str) -> Index:
            ids = encoding.load_ids(collection.embeddings(system), "candidates")
            return windows.over_candidates(_Asked(share, give, collection.name, system), windows.owners(ids))

        return work(open_exact)

    return orders.lead(led, share.obey)


class _Share:
    """What a host has: indexes over the embeddings of a collection, one a system, in which its rows are its own."""

    def __init__(self, embeddings_of: EmbeddingsOf):
        self._embeddings_of, self._of = embeddings_of, ""
        self._indexes: dict[str, ExactIndex] = {}
        self._mesh = jax.make_mesh((jax.device_count(),), ("rows",))

    def obey(self, order: Sequence[Any]) -> None:
        """Does what the first process asks for."""
        what, *arguments = order
        if what == "open":
            self.open(*arguments)
        else:
            system, shape, k = arguments
            self.search(system, np.zeros(shape, np.float32), k)

    def open(self, name: str, system: str) -> int:
        """Takes this host's rows; those of another collection are no longer needed. Returns the dimensions."""
        if name != self._of:
            self._of, self._indexes = name, {}
        rows = StoredRows(self._embeddings_of(name, system), "candidates")
        self._indexes[system] = ExactIndex(rows, mesh=self._mesh)
        return rows.shape[1]

    def search(self, system: str, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """What all hosts find, in each of them; the queries are those of the first."""
        return self._indexes[system].search(multihost_utils.broadcast_one_to_all(queries_QE), k)


class _Asked:
    """The index in the first process: every search is one of all hosts."""

    def __init__(self, share: _Share, give: orders.Give, name: str, system: str):
        self._share, self._give, self._system = share, give, system
        give(["open", name, system])
        self._dimensions = share.open(name, system)

    def search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `ExactIndex.search`."""
        queries_QE = matching_queries(queries_QE, self._dimensions)
        found = [no_results(0, k)]
        for start in range(0, len(queries_QE), _AT_ONCE):
            part_QE = queries_QE[start : start + _AT_ONCE]
            self._give(["search", self._system, part_QE.shape, k])
            found.append(self._share.search(self._system, part_QE, k))
        scores, rows = zip(*found)
        return np.concatenate(scores), np.concatenate(rows)
