"""Embeddings on a disk whose rows are read when they are asked for: a host of a pod reads its share alone."""

import bisect
import functools
import itertools
from pathlib import Path

import numpy as np

from retrieval.errors import UserError
from retrieval.search import encoding


class StoredRows:
    """The embeddings [N, E] of a name that `encoding.encode` has written; slices of them are arrays.

    Attributes:
      shape: N and E.
      ends: 0, and the row behind the last one of each shard.
    """

    def __init__(self, folder: Path, name: str):
        """Reads the ids of all shards, and the embeddings of the first.

        Raises:
          UserError: as `encoding.load`.
        """
        self._paths = encoding.shard_paths(folder, name)
        counts = [len(encoding.read_ids(path)) for path in self._paths]
        self.ends = list(itertools.accumulate(counts, initial=0))
        # Several devices of a host ask for rows of one shard, one after the other.
        self._shard = functools.lru_cache(1)(encoding.read_shard)
        self.shape: tuple[int, int] = (self.ends[-1], self._shard(self._paths[0]).shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """The rows, float32.

        Raises:
          UserError: a shard is damaged, of another size than the others, or holds NaN or infinity.
        """
        start, stop, _ = rows.indices(len(self))
        parts = [np.zeros((0, self.shape[1]), np.float32)]
        for number in range(bisect.bisect_right(self.ends, start) - 1, len(self._paths)):
            first, end = self.ends[number], self.ends[number + 1]
            if first >= stop:
                break
            parts.append(self._whole(number)[max(start - first, 0) : min(stop, end) - first])
        return np.concatenate(parts)

    def _whole(self, number: int) -> np.ndarray:
        path, expected = self._paths[number], (self.ends[number + 1] - self.ends[number], self.shape[1])
        shard_NE = self._shard(path)
        if shard_NE.shape != expected:
            raise UserError(f"{path}: embeddings {shard_NE.shape} where {expected} belong; delete it and encode again")
        return shard_NE
