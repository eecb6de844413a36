"""The kinds of index, which `config.index.words`, `config.index.dense` and `config.mine.system` name.

A kind is in a file of this package, or of a plugin: it overrides `build`, `load`, and what else differs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from retrieval.common.errors import UserError
from retrieval.common.registry import Table

if TYPE_CHECKING:
    from retrieval.data.sets.candidate import Candidate

Options = Mapping[str, Any]
NO_OPTIONS: Options = {}


class Texts(NamedTuple):
    """What an index of words is built from.

    Attributes:
      name: of the collection.
      passages: reads the candidates from their files, in order; it can be called again.
      folds_accents: whether 'café' and 'cafe' are one word for the vocabulary of the run.
      generated: the file of what the stage `generate` wrote of the passages, which may be missing; None where there
        is no such stage.
    """

    name: str
    passages: Callable[[], "Iterator[Candidate]"]
    folds_accents: Callable[[], bool]
    generated: Path | None = None


class SavedIndex(Protocol):
    """An index that can be written to a folder."""

    def search(self, queries: Any, k: int, /) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows [Q, k], best first, ties to the smaller row; -inf and -1 where fewer were found.

        Args:
          queries: texts of an index of words, else embeddings [Q, E].
        """
        ...

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

    Its `search` takes a list of texts where it is of words, else embeddings [Q, E].

    Attributes:
      name: in the config, and of the folder of each index.
      title: what people call it.
      system: the name of its results in tables.
      of_words: whether it is built from `Texts`, not from embeddings.
      is_saved: whether the stage `index` builds and saves it. Otherwise it is built when it is searched. One of words
        is always saved.
      spreads: whether `build` takes `StoredRows` too, whose rows are read when they are asked for, and as a third
        argument a mesh, whose processes build the index together; only of embeddings that is not saved.
      options: the fields of the config that its methods get, as dotted names.
    """

    name: str
    title: str
    system: str
    of_words: bool = False
    is_saved: bool = True
    spreads: bool = False
    options: Sequence[str] = ()

    def available(self) -> bool:
        """Whether it can be used on this machine; where it cannot, the reason is logged."""
        return True

    def check(self, options: Options) -> None:
        """Checks its options, before a run begins."""

    def preview(self, options: Options) -> None:
        """Reads the first record of each of its files, before the stages of a run."""

    def inputs(self, options: Options) -> Sequence[Path]:
        """The files that it is built from, besides the collection. When one changes, the index is built again."""
        return ()

    def stages(self, options: Options) -> Sequence[str]:
        """Stages whose output it is built from, besides the collection and its embeddings."""
        return ()

    def beside(self, options: Options) -> Sequence[str]:
        """Names of further kinds that are built with this one."""
        return ()

    def build(self, contents: Any, options: Options) -> Any:
        """Builds an index of `Texts` or of embeddings [N, E]: a `SavedIndex`, or an `Index` where it is not saved.

        `UserError` says that there are no candidates, none with a word, or an embedding that is not finite.
        """
        raise NotImplementedError(f"the kind of index '{self.name}' has no build()")

    def load(self, folder: Path) -> SavedIndex:
        """Loads what `save` wrote; `UserError` where the folder is no saved index, or is damaged."""
        raise NotImplementedError(f"an index of kind '{self.name}' is not saved")

    def system_of(self, index: Any) -> str:
        """The name of an index's results in tables; no two kinds of a run have the same."""
        return self.system


INDEXES: Table[IndexKind] = Table("index", "retrieval.search", "index")


def register(kind: type[IndexKind]) -> type[IndexKind]:
    """Adds a kind to INDEXES. To be used as a decorator."""
    INDEXES.register(kind.name, kind())
    return kind


class _Names(Collection[str]):
    """The names of the kinds that are of words, of those that are not, or of all, as they are registered now."""

    def __init__(self, *of_words: bool, more: Sequence[str] = ()):
        self._of_words, self._more = of_words, more

    def __contains__(self, name: object) -> bool:
        return any(name == known for known in self)

    def __iter__(self) -> Iterator[str]:
        yield from (name for name, kind in INDEXES.items() if kind.of_words in self._of_words)
        yield from self._more

    def __len__(self) -> int:
        return sum(1 for _ in self)


RANDOM = "random"  # candidates that `mine` draws by chance
DENSE, OF_WORDS, MINED = _Names(False), _Names(True), _Names(True, False, more=[RANDOM])
EXACT = "exact"  # against which others are measured, and which serves where another cannot


def kinds_of_words(names: Sequence[str], options: Callable[[IndexKind], Options]) -> list[IndexKind]:
    """The kinds that `config.index.words` names, each followed by those that are built with it.

    Args:
      options: gives a kind's options.
    """
    kinds: list[IndexKind] = []
    for name in names:
        kind = INDEXES.find(name, "config.index.words")
        if not kind.of_words:
            known = ", ".join(OF_WORDS)
            raise UserError(f"config.index.words: '{name}' is an index of embeddings; name some of {known}")
        kinds += [kind, *(INDEXES[other] for other in kind.beside(options(kind)))]
    if twice := [kind.name for kind in kinds if kinds.count(kind) > 1]:
        raise UserError(f"config.index.words={tuple(names)}: '{twice[0]}' is built twice; name it once")
    return kinds
