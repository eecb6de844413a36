"""ScaNN in shards, such as those that the hosts of a pod build: each has some rows, and their lists are merged.

FOLDER/shards.json                how many rows each shard has
FOLDER/shard-00000-of-00002/      a saved `ScannIndex` of the first rows
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.search.exact import no_results
from retrieval.search.scann import ScannIndex
from retrieval.search.tuning import Sample

_LIST = "shards.json"
_REMEDY = "--stage=index makes it again"


class ScannShards:
    """Some shards of an index, or all. Rows are those of the whole."""

    def __init__(self, shards: Sequence[ScannIndex], firsts: Sequence[int]):
        """Args:
        firsts: the first row of each shard.
        """
        self._shards, self._firsts = shards, firsts

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    @property
    def description(self) -> str:
        """The shards' own descriptions, in words for a report."""
        return f"{len(self._shards)} shards, the first of them: {self._shards[0].description}"

    def save(self, folder: Path) -> None:
        """Writes each of the shards, and then their list: without that there is no index."""
        files.remove(folder)
        for number, shard in enumerate(self._shards):
            shard.save(shard_path(folder, number, len(self._shards)))
        write_list(folder, list(map(len, self._shards)))

    @classmethod
    def load(cls, folder: Path, part: slice = slice(None)) -> "ScannShards":
        """Loads what `write_list` completed: all shards, or those of a part.

        Raises:
          UserError: a shard of it is missing, damaged, or of another size than the list says.
        """
        rows = counts(folder)
        firsts = np.cumsum([0, *rows[:-1]]).tolist()
        shards = [_load(shard_path(folder, number, len(rows)), rows[number]) for number in range(len(rows))[part]]
        return cls(shards, firsts[part])

    def search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `ScannIndex.search`, of all these shards."""
        found = [shard.search(queries_QE, k) for shard in self._shards]
        lists = [
            (scores_QK, np.where(rows_QK < 0, -1, rows_QK + first))
            for (scores_QK, rows_QK), first in zip(found, self._firsts)
        ]
        return merge(lists, len(queries_QE), k)


def merge(lists: Sequence[tuple[np.ndarray, np.ndarray]], queries: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The best `k` of several lists [Q, K] of scores and rows, ties to the smaller row; -inf and -1 stay last."""
    scores_QX, rows_QX = (np.concatenate(parts, axis=1) for parts in zip(no_results(queries, k), *lists))
    last_QX = np.where(rows_QX < 0, np.iinfo(np.int32).max, rows_QX)
    order_QK = np.lexsort((last_QX, -scores_QX), axis=1)[:, :k]
    return np.take_along_axis(scores_QX, order_QK, axis=1), np.take_along_axis(rows_QX, order_QK, axis=1)


def rows_of(shard: int, shards: int, rows: int) -> slice:
    """The rows of a shard, of so many in all."""
    return slice(shard * rows // shards, (shard + 1) * rows // shards)


def sample_of(sample: Sample, rows: slice) -> Sample:
    """What a shard is tuned on: of each query the exact results that it has, for queries of which it has some."""
    in_SK = (sample.exact_SK >= rows.start) & (sample.exact_SK < rows.stop)
    some_S = in_SK.any(axis=1)
    own_S = np.where((sample.own_S >= rows.start) & (sample.own_S < rows.stop), sample.own_S - rows.start, -1)
    exact_SK = np.where(in_SK, sample.exact_SK - rows.start, -1)
    return Sample(sample.queries_SE[some_S], exact_SK[some_S], own_S[some_S])


def is_in_shards(folder: Path) -> bool:
    """Whether the index there is one of shards."""
    return (folder / _LIST).exists()


def counts(folder: Path) -> list[int]:
    """How many rows each shard of an index has.

    Raises:
      UserError: the list is damaged.
    """
    files.verify_manifest(folder, _REMEDY)
    return files.read_json(folder / _LIST)


def shard_path(folder: Path, shard: int, shards: int) -> Path:
    """The folder of a shard."""
    return folder / f"shard-{shard:05d}-of-{shards:05d}"


def write_list(folder: Path, rows: Sequence[int]) -> None:
    """Completes an index whose shards, of so many rows each, are all saved."""
    files.write_json(folder / _LIST, list(rows))
    files.write_json(folder / files.MANIFEST, files.checksums(folder, [folder / _LIST]))


def _load(path: Path, rows: int) -> ScannIndex:
    if not path.is_dir():
        raise UserError(f"{path}: this shard of the index is missing; {_REMEDY}, or copy the shard from its host")
    index = ScannIndex.load(path)
    if len(index) != rows:
        raise UserError(f"{path}: a shard of {len(index)} rows where {rows} belong; {_REMEDY}")
    return index
