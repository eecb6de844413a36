"""The vectors of texts' tokens in files, a shard of the texts in each; a run that was killed goes on after the last.

    NAME-00003-of-00012.npy          the vectors of all tokens that count, [tokens, E], or what a codec makes of each
    NAME-00003-of-00012.texts.json   the ids of the shard's texts, and how many vectors each has
    NAME-00003-of-00012.sums.json    the sums of these two, as `sharded_map` has them
    NAME.codec.npz                   the codec, where there is one

Shards are mapped into memory, and read where they are asked for.
"""

import bisect
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.methods.late_interaction.plaid import CentroidLists
from retrieval.methods.late_interaction.residuals import Codec
from retrieval.methods.late_interaction.token_encoder import Queries
from retrieval.search import sharded_map
from retrieval.search.sharded_map import Shards

T = TypeVar("T")
VectorsOf = Callable[[Sequence[Any]], Sequence[np.ndarray]]

FOLDER = "tokens"  # of a work directory
_AGAIN, _TEXTS = "--stage=tokens makes it again", ".texts.json"


def write(
    shards: Shards, texts: Iterable[tuple[str, T]], vectors_of: VectorsOf, stored_of: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Writes this host's shards.

    Args:
      texts: ids and texts, in order.
      vectors_of: from some texts to the vectors [T, E] of each.
      stored_of: from the vectors [T, E] of a shard to what is written of each.

    Raises:
      UserError: there are not as many texts as the shards have.
    """

    def make(members: Sequence[tuple[str, T]]) -> tuple[Sequence[str], Sequence[np.ndarray]]:
        ids, of_ids = zip(*members) if members else ((), ())
        return ids, vectors_of(of_ids)

    def save(path: Path, made: tuple[Sequence[str], Sequence[np.ndarray]]) -> None:
        ids, vectors = made
        parts = [each for each in vectors if len(each)]
        files.write_json(path.with_suffix(_TEXTS), {"ids": ids, "vectors": list(map(len, vectors))})
        files.write_array(path, stored_of(np.concatenate(parts)) if parts else np.zeros((0, 0), np.float32))

    shards.write(texts, make, save)


def copy(source: Path, shards: Shards) -> None:
    """Copies this host's shards from a folder where `write` has written as many texts; what is there is kept."""
    shards.copy(source)
    if codec_path(source, shards.name).exists():
        sharded_map.copy(codec_path(source, shards.name), codec_path(shards.folder, shards.name))


def codec_path(folder: Path, name: str) -> Path:
    """The file of a codec, which is sealed as a shard is."""
    return folder / f"{name}.codec.npz"


def load_codec(folder: Path, name: str) -> Codec | None:
    """The codec of a name, if it has one."""
    path = codec_path(folder, name)
    return Codec.load(sharded_map.verify(path, _AGAIN), f"delete {folder}, and {_AGAIN}") if path.exists() else None


class TokenStore:
    """The vectors of a name that `write` has written. Files are mapped into memory, and read where they are asked for.

    Attributes:
      ids: of the texts, in order.
      sizes: how many vectors each has, int64 [N].
      bytes: of the vectors of all.
    """

    def __init__(self, folder: Path, name: str):
        """Looks at all shards, whose vectors have to be of one size."""
        self._paths = sharded_map.whole(folder, name, ".npy", _AGAIN)
        self._codec = load_codec(folder, name)
        records = [files.read_json(sharded_map.verify(path.with_suffix(_TEXTS), _AGAIN)) for path in self._paths]
        self.ids = [id for record in records for id in record["ids"]]
        self.sizes = np.array([size for record in records for size in record["vectors"]], np.int64)
        self._starts = np.cumsum([0, *self.sizes])  # of texts among all vectors, and of shards
        self._ends = list(itertools.accumulate((sum(record["vectors"]) for record in records), initial=0))
        self._shard = functools.lru_cache(64)(self._opened)
        shards = list(map(self._shard, range(len(self._paths))))
        stored = self._codec.bytes if self._codec else max(shard.shape[1] for shard in shards)
        self.dimensions = self._codec.centroids.shape[1] if self._codec else stored
        self.bytes = sum(shard.nbytes for shard in shards)
        for path, expected, (rows, width) in zip(self._paths, np.diff(self._ends), (shard.shape for shard in shards)):
            if rows != expected or (expected and width != stored):
                wanted = f"where {expected} in {stored} belong"
                raise UserError(f"{path}: {rows} vectors in {width} columns {wanted}; {_AGAIN}")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int, /) -> np.ndarray:
        """The vectors of a text, [T, E]."""
        return self.gather([number])

    def gather(self, numbers: Sequence[int], /) -> np.ndarray:
        """Those of some texts, one after the other, [T, E]."""
        parts = [self._stored(number) for number in numbers if self.sizes[number]]
        if not parts:
            return np.zeros((0, self.dimensions), np.float32)
        stored = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self._codec.decode(stored) if self._codec else stored

    def centroid_lists(self) -> CentroidLists:
        """The texts that have a vector near a centroid.

        Raises:
          UserError: the vectors are stored without centroids.
        """
        if not self._codec:
            way = "encode with config.late.stored=residual2, or set config.late.probes=0"
            raise UserError(f"{self._paths[0].parent}: its vectors have no centroids to look at: {way}")
        shards = [self._shard(shard) for shard in range(len(self._paths)) if self._ends[shard] < self._ends[shard + 1]]
        codes_T = np.concatenate([np.zeros((0, 4), np.uint8), *(shard[:, :4] for shard in shards)]).view("<u4")[:, 0]
        return CentroidLists(codes_T, self.sizes, self._codec.centroids)

    def _stored(self, number: int) -> np.ndarray:
        shard = bisect.bisect_right(self._ends, self._starts[number]) - 1
        begin = self._starts[number] - self._ends[shard]
        return self._shard(shard)[begin : begin + self.sizes[number]]

    def as_queries(self) -> Queries:
        """All of them, padded."""
        longest = max(1, int(self.sizes.max(initial=0)))
        return Queries.padded([self[number] for number in range(len(self))], len(self), longest)

    def check(self, what: str, ids: Sequence[str]) -> None:
        """Checks that the texts are those of a set as it is now."""
        for number, (id, other) in enumerate(itertools.zip_longest(ids, self.ids), 1):
            if id != other:
                there = f"of its {len(ids)} {what} '{id}' is number {number}, and '{other}' of the {len(self.ids)} here"
                raise UserError(f"{self._paths[0].parent}: older than the set: {there}; {_AGAIN}")

    def _opened(self, shard: int) -> np.ndarray:
        path = sharded_map.verify(self._paths[shard], _AGAIN)
        return files.read_array(path, _AGAIN, mapped=self._ends[shard] < self._ends[shard + 1])  # else nothing to map
