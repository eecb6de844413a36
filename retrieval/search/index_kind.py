"""The kinds of index, which `config.index.dense` and `config.mine.system` name.

A kind is one file of this package, or of a plugin: it overrides `build`, `load`, and what else differs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from retrieval.registry import Table
from retrieval.search.windows import Index


class Contents(NamedTuple):
    """What an index of embeddings is built from.

    Attributes:
      embeddings_WE: those of all windows; may be memory-mapped.
      owners_W: the candidate of each window.
      queries: gives embeddings [Q, E] of queries like those that will come, to tune the index on; Q may be 0.
      depth: results that a query will ask for.
    """

    embeddings_WE: np.ndarray
    owners_W: np.ndarray
    queries: Callable[[], np.ndarray]
    depth: int


class SavedIndex(Index, Protocol):
    """An index that can be written to a folder."""

    @property
    def description(self) -> str:
        """The kind of index and its parameters, in words for a report."""
        ...

    def __len__(self) -> int: ...

    def save(self, folder: Path) -> None:
        """Writes the index with a manifest, whole or not at all."""
        ...


class IndexKind:
    """A kind of index.

    Attributes:
      name: in the config, and of the folder of each index.
      title: what people call it.
      system: the name of its results in tables.
      of_words: whether it is over words, not over embeddings. Its queries are texts then.
      is_saved: whether the stage `index` builds and saves it; otherwise it is built when it is searched.
      options: the fields of the config that `build` reads, as dotted names.
    """

    name: str
    title: str
    system: str
    of_words: bool = False
    is_saved: bool = True
    options: Sequence[str] = ()

    def available(self) -> bool:
        """Whether it can be used on this machine; where it cannot, the reason is logged."""
        return True

    def build(self, contents: Contents, options: Mapping[str, Any]) -> Any:
        """Builds an index of embeddings: a `SavedIndex`, or an `Index` where it is not saved.

        Raises:
          UserError: there are no candidates, or an embedding holds NaN or infinity.
        """
        raise NotImplementedError(f"no index of kind '{self.name}' is built of embeddings")

    def load(self, folder: Path) -> SavedIndex:
        """Loads what `save` wrote.

        Raises:
          UserError: the folder is no saved index, or is damaged.
        """
        raise NotImplementedError(f"an index of kind '{self.name}' is not saved")


INDEXES: Table[IndexKind] = Table("index", "retrieval.search")


def register(kind: type[IndexKind]) -> type[IndexKind]:
    """Adds a kind to INDEXES. To be used as a decorator."""
    INDEXES.register(kind.name, kind())
    return kind


class _Dense(Collection[str]):
    """The names of the kinds that are over embeddings, as they are registered now."""

    def __contains__(self, name: object) -> bool:
        return any(name == known for known in self)

    def __iter__(self) -> Iterator[str]:
        return (name for name, kind in INDEXES.items() if not kind.of_words)

    def __len__(self) -> int:
        return sum(1 for _ in self)


DENSE = _Dense()
EXACT = "exact"  # against which others are measured, and which serves where another cannot
