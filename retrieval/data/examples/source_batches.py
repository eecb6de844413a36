"""Batches of several sources of examples, each batch of one source.

The source of a batch is a function of the seed and of the number of the batch. So every host draws the same one, and a
run that goes on needs no more than that number and the position of each source.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.runtime import hashing, hosts

_POSITION = "sources.json"


def shares(sizes: Sequence[int], weights: Sequence[float] | None, alpha: float) -> np.ndarray:
    """How often each source is drawn: by its weight, or else by its size to the power `alpha`; they sum to 1."""
    raw = np.array(weights, np.float64) if weights else np.array(sizes, np.float64) ** alpha
    return raw / raw.sum()


def drawn(share_S: np.ndarray, seed: int, number: int) -> int:
    """The source of a batch; the first batch has the number 0."""
    place = hashing.number("source", str(seed), str(number)) / 2**64
    return min(int(np.searchsorted(np.cumsum(share_S), place, side="right")), len(share_S) - 1)


class SourceBatch(dict):
    """A batch, and which of several objectives it is for: JAX takes batches of another one for another structure."""

    def __init__(self, fields: Mapping[str, Any] | Iterable[tuple[str, Any]], objective: Hashable):
        super().__init__(fields)
        self.objective = objective


jax.tree_util.register_pytree_with_keys(
    SourceBatch,
    lambda batch: (
        [(jax.tree_util.DictKey(name), batch[name]) for name in sorted(batch)],
        (tuple(sorted(batch)), batch.objective),
    ),
    lambda structure, values: SourceBatch(zip(structure[0], values), structure[1]),
)


class OfSource(Protocol):
    """Batches of a source, as `batches.Batches`."""

    def __next__(self) -> dict[str, jax.Array]:
        """The next one."""
        ...

    def save(self, folder: Path) -> None:
        """Writes the position, into files of names of its own."""

    def restore(self, folder: Path) -> None:
        """Goes back to a position."""


class SourceBatches:
    """An endless iterator of batches, each of a source."""

    def __init__(
        self,
        sources: Mapping[str, OfSource],
        share_S: np.ndarray,
        seed: int,
        epoch: int,
        objectives: Sequence[Hashable],
    ):
        """Args:
        share_S: how often each source is drawn, which `shares` says to others.
        epoch: the examples of all sources together, which `epoch` says to others.
        objectives: that of each source's batches.
        """
        self.epoch = epoch
        self._sources, self.shares, self._seed, self._objectives = sources, share_S, seed, objectives
        self._number = 0

    def __iter__(self) -> SourceBatches:
        return self

    def __next__(self) -> SourceBatch:
        source = drawn(self.shares, self._seed, self._number)
        self._number += 1
        return SourceBatch(next(list(self._sources.values())[source]), self._objectives[source])

    def save(self, folder: Path) -> None:
        """Writes the number of the next batch, and the position of every source."""
        if hosts.is_first():
            files.write_json(folder / _POSITION, {"batches": self._number, "sources": list(self._sources)})
        for batches in self._sources.values():
            batches.save(folder)

    def restore(self, folder: Path) -> None:
        """Goes back to a saved position."""
        path = folder / _POSITION
        if not path.exists() or (position := files.read_json(path))["sources"] != list(self._sources):
            raise UserError(f"{path}: no position in these sources; go on with the config that the run began with")
        self._number = position["batches"]
        for batches in self._sources.values():
            batches.restore(folder)
