"""An index of embeddings in shards: each has some rows, and their lists are merged.

FOLDER/shards.json                how many rows each shard has
FOLDER/shard-00000-of-00002/      an index of the first rows, as its kind saves it

A stage that is killed keeps the shards that it has finished. The hosts of a pod take every n-th shard. More rows than
`_MOST` are in several shards on one host, too: building an index takes several times the memory of its embeddings.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.search.exact import merge
from retrieval.search.index_kind import SavedIndex
from retrieval.search.windows import Index

_LIST = "shards.json"
_LEAST, _MOST = 5_000, 4_000_000  # rows of a shard
_REMEDY = "--stage=index makes it again"


class IndexShards:
    """Some shards of an index, or all. Rows are those of the whole."""

    def __init__(self, shards: Sequence[Index], firsts: Sequence[int]):
        """Args:
        firsts: the first row of each shard.
        """
        self._shards, self._firsts = shards, firsts

    @classmethod
    def load(cls, folder: Path, load: Callable[[Path], SavedIndex], part: slice = slice(None)) -> "IndexShards":
        """Loads what `write_list` completed: all shards, or those of a part.

        Args:
          load: loads a shard.

        Raises:
          UserError: a shard of it is missing, damaged, or of another size than the list says.
        """
        rows = counts(folder)
        firsts = np.cumsum([0, *rows[:-1]]).tolist()

        def shard(number: int) -> SavedIndex:
            path = shard_path(folder, number, len(rows))
            if not path.is_dir():
                raise UserError(f"{path}: this shard of the index is missing; {_REMEDY}, or copy it from its host")
            index = load(path)
            if len(index) != rows[number]:
                raise UserError(f"{path}: a shard of {len(index)} rows where {rows[number]} belong; {_REMEDY}")
            return index

        return cls(list(map(shard, range(len(rows))[part])), firsts[part])

    def search(self, queries_QE: np.ndarray, k: int, /) -> tuple[np.ndarray, np.ndarray]:
        """As `SavedIndex.search`, of all these shards."""
        lists = []
        for shard, first in zip(self._shards, self._firsts):
            scores_QK, rows_QK = shard.search(queries_QE, k)
            lists.append((scores_QK, np.where(rows_QK < 0, -1, rows_QK + first)))
        return merge(lists, len(queries_QE), k)


def number(rows: int, hosts: int) -> int:
    """How many shards so many rows are in: one a host where none would be very small, and more of many rows."""
    return max(-(-rows // _MOST), min(hosts, rows // _LEAST), 1)


def rows_of(shard: int, shards: int, rows: int) -> slice:
    """The rows of a shard, of so many in all."""
    return slice(shard * rows // shards, (shard + 1) * rows // shards)


def counts(folder: Path) -> list[int]:
    """How many rows each shard of an index has.

    Raises:
      UserError: the list is missing or damaged.
    """
    files.verify_manifest(folder, _REMEDY)
    return files.read_json(folder / _LIST)


def shard_path(folder: Path, shard: int, shards: int) -> Path:
    """The folder of a shard."""
    return folder / f"shard-{shard:05d}-of-{shards:05d}"


def write_list(folder: Path, shards: int, rows: int) -> None:
    """Completes an index of so many rows whose shards are all saved."""
    parts = [rows_of(shard, shards, rows) for shard in range(shards)]
    files.write_json(folder / _LIST, [part.stop - part.start for part in parts])
    files.write_json(folder / files.MANIFEST, files.checksums(folder, [folder / _LIST]))
