"""The systems that vectors are handed over to: `config.handover.to` names them. One is a file of this package."""

from collections.abc import Iterator, Mapping, Sequence
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
      dimensions: the most that it stores, by dtype; without a limit where there is none.
      id_bytes: the longest id, in UTF-8; 0: any.
      load: how the folder is loaded and asked, for its README.
    """

    name: str
    title: str
    dtypes: Sequence[str] = (FLOAT32,)
    instead: str = "take float32"
    dimensions: Mapping[str, int] = {}
    id_bytes: int = 0
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
          UserError: it takes no such dtype, or not so many dimensions.
        """
        self.check_dtype(vectors.dtype)
        most = self.dimensions.get(vectors.dtype, vectors.dimension)
        if vectors.dimension > most:
            raise UserError(
                f"config.handover.to={self.name}: the most for {self.title} are {most:,} dimensions of "
                f"{vectors.dtype}, and embeddings have {vectors.dimension:,}: cut them with config.encode.truncate, or "
                "name another target"
            )

    def check_id(self, id: str) -> None:
        """Checks that an id can be one there.

        Raises:
          UserError: it cannot.
        """
        if self.id_bytes and len(id.encode()) > self.id_bytes:
            raise UserError(
                f"config.handover.to={self.name}: the id '{id[:60]}…' has {len(id.encode()):,} bytes, and the most "
                f"for {self.title} are {self.id_bytes:,}: give that document a shorter id"
            )

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
