"""The systems that vectors are handed over to: `config.handover.to` names them. One is a file of this package."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from retrieval.errors import UserError
from retrieval.handover.vectors import FLOAT32, Block, Vectors
from retrieval.registry import Table


class Place(NamedTuple):
    """Where a target writes.

    Attributes:
      folder: an empty folder.
      address: where that will be in the end: a path, or an address on a store.
    """

    folder: Path
    address: str


class Target:
    """A system, and the files that it loads.

    Attributes:
      name: in the config, and of the folder.
      title: what people call it.
      dtypes: what it can be given.
      instead: what to do where `dtypes` has not what is wanted.
      load: how the folder is loaded and asked, for its README.
    """

    name: str
    title: str
    dtypes: Sequence[str] = (FLOAT32,)
    instead: str = "take float32"
    load: str = ""

    def check_dtype(self, dtype: str) -> None:
        """Checks that it can be given vectors of a dtype.

        Raises:
          UserError: it cannot.
        """
        if dtype not in self.dtypes:
            raise UserError(
                f"config.handover.dtype={dtype}: '{self.name}', for {self.title}, takes {' or '.join(self.dtypes)}: "
                f"{self.instead}"
            )

    def check(self, vectors: Vectors) -> None:
        """Checks that it can be given these vectors, before any is written.

        Raises:
          UserError: it takes no such dtype.
        """
        self.check_dtype(vectors.dtype)

    def check_id(self, id: str) -> None:
        """Checks that an id can be one there.

        Raises:
          UserError: it cannot.
        """

    def blocks(self, vectors: Vectors) -> Iterator[Block]:
        """The rows, their ids checked."""
        for block in vectors.blocks():
            for id in block.ids:
                self.check_id(id)
            yield block

    def write(self, place: Place, vectors: Vectors, queries: Vectors | None) -> dict[str, int]:
        """Writes the files; returns the rows of each that has rows, by its path below the folder.

        Args:
          queries: of an evaluation set.

        Raises:
          UserError: a row cannot be stored there.
        """
        raise NotImplementedError(f"the target '{self.name}' has no write()")


TARGETS: Table[Target] = Table("target", "retrieval.handover")


def register(target: type[Target]) -> type[Target]:
    """Adds a target to TARGETS. To be used as a decorator."""
    TARGETS.register(target.name, target())
    return target
