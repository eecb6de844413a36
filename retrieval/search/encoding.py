"""Texts to embeddings, in batches of texts of like length, and in files that a killed run goes on with.

NAME-00003-of-00012.npy            [rows, E], float32, or codes as `vector_codes` has them
NAME-00003-of-00012.ids.json       the ids of the rows, in order; of a text with several rows they are neighbours
NAME-00003-of-00012.clipped.json   where codes have ranges: how many values lie outside of these
NAME-00003-of-00012.sums.json      the sums of these, as `sharded_map` has them
NAME.json, NAME.ranges.npy         what the rows are, where `encode` was told; without these they are float32

Three things happen at once: a thread tokenises texts and makes batches of them, the caller's has them embedded, one
batch ahead of the one whose result it takes, and a third writes the shard before.
"""

import bisect
import functools
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.runtime import hosts
from retrieval.search import sharded_map, vector_codes
from retrieval.search.text_batches import batches, enough, few, padded, rounded
from retrieval.search.vector_codes import Form

T = TypeVar("T")

Embed = Callable[[np.ndarray], np.ndarray]
"""Padded token ids [B, L] to embeddings [B, E]; called with few different shapes."""

# Batches that lie ready, and texts that are tokenised at once.
_AHEAD, _CHUNK = 8, 1024
_FEW = 32  # texts that are embedded as one batch
_REMEDY = "delete it and encode again"


def encode(
    folder: Path,
    name: str,
    texts: Iterable[tuple[str, T]],
    total: int,
    tokens: Callable[[Sequence[T]], Sequence[Sequence[Sequence[int]]]],
    embed: Embed,
    *,
    shard_size: int,
    batch_tokens: int,
    longest: int,
    multiple: int = 1,
    form: Form | None = None,
) -> None:
    """Writes the embeddings of this host's shards below `folder`, as `sharded_map` says.

    Args:
      texts: ids and texts, in order.
      total: how many there are.
      tokens: of each of some texts, the token ids of its rows, special tokens included; called in a thread.
      batch_tokens: padded tokens of a batch; fixes the memory. A batch is no larger than all texts need.
      longest: no text has more tokens, and none is padded to more.
      multiple: the number of rows of a batch is a multiple of it (the number of devices).
      form: how the rows are stored, which is noted; by default as float32, of which nothing is noted.

    Raises:
      UserError: there are not `total` texts, or an embedding is not finite.
    """

    batch_tokens = enough(batch_tokens, total, longest)

    def make(members: Sequence[tuple[str, T]]) -> tuple[list[str], np.ndarray]:
        ids: list[str] = []
        return ids, encode_rows(_rows(members, tokens, ids), embed, batch_tokens, longest, multiple)

    paths = sharded_map.shard_paths(folder, name, ".npy", total, shard_size)
    if form and hosts.is_first():
        vector_codes.write(folder, name, form)
    options = (form,) if form else ()
    sharded_map.write_shards(paths, texts, total, shard_size, make, lambda path, made: write(path, *made, *options))


def copy(source: Path, folder: Path, name: str, total: int, shard_size: int) -> None:
    """Copies this host's shards of a name that `encode` has written of as many texts; those that are there are kept."""
    if hosts.is_first() and vector_codes.path(source, name).exists():
        sharded_map.copy(vector_codes.path(source, name), vector_codes.path(folder, name))
    for path in sharded_map.missing(sharded_map.shard_paths(folder, name, ".npy", total, shard_size)).values():
        sharded_map.copy(source / path.name, path)


def write(path: Path, ids: Sequence[str], embeddings_NE: np.ndarray, form: Form | None = None) -> None:
    """Writes the files of a shard."""
    files.write_text(_ids_path(path), json.dumps(ids, ensure_ascii=False))
    stored_NS = embeddings_NE
    if form and len(ids):  # of no text not even the dimensions are known
        stored_NS, clipped = form.encode(embeddings_NE)
        if form.has_range:
            files.write_json(_clipped_path(path), clipped)
    with files.atomic(path) as temporary, temporary.open("wb") as file:
        np.save(file, stored_NS, allow_pickle=False)


def clipped(folder: Path, name: str) -> int | None:
    """How many values of all rows of a name lay outside of the ranges of their codes; None where these have none.

    Raises:
      UserError: a shard is missing or damaged.
    """
    form = vector_codes.read(folder, name)
    if not (form and form.has_range):
        return None
    whole = (path for path in _whole_paths(folder, name) if len(_read_ids(path)))
    return sum(files.read_json(sharded_map.verify(_clipped_path(path), _REMEDY)) for path in whole)


class StoredRows:
    """The embeddings [N, E] of a name that `encode` has written, read when they are asked for; slices are arrays.

    Attributes:
      form: how they are stored; None of what is not noted, which is float32.
      ends: 0, and the row behind the last one of each shard.
    """

    def __init__(self, folder: Path, name: str):
        """Reads the ids of all shards.

        Raises:
          UserError: a shard is missing, or a list of ids or what is noted of the rows is damaged.
        """
        self._paths = _whole_paths(folder, name)
        self.form = vector_codes.read(folder, name)
        self.ends = list(itertools.accumulate((len(_read_ids(path)) for path in self._paths), initial=0))
        # Several devices of a host ask for rows of one shard, one after the other.
        self._shard = functools.lru_cache(1)(_read_shard)
        self._mapped = functools.cache(functools.partial(_read_shard, mapped=True))

    @property
    def shape(self) -> tuple[int, int]:
        """N and E."""
        return self.ends[-1], self.form.dim if self.form else self._width

    @functools.cached_property
    def _width(self) -> int:
        return self._shard(self._paths[0]).shape[1]

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """The rows, float32.

        Raises:
          UserError: a shard is damaged.
        """
        start, stop, _ = rows.indices(len(self))
        result_NE = np.empty((max(stop - start, 0), self.shape[1]), np.float32)  # concatenated, it would be there twice
        for first, part_NS in self._parts(start, stop):
            decoded_NE = self.form.decode(part_NS) if self.form else part_NS
            result_NE[first : first + len(part_NS)] = decoded_NE
        return result_NE

    def stored(self, rows: slice) -> np.ndarray:
        """The rows [N, S] as the files have them."""
        start, stop, _ = rows.indices(len(self))
        parts = [part_NS for _, part_NS in self._parts(start, stop)]
        return np.concatenate(parts) if parts else self._shard(self._paths[0])[:0]

    def take(self, rows_M: np.ndarray) -> np.ndarray:
        """Some rows [M, E], float32, in any order; of the files only their bytes are read.

        Raises:
          UserError: a shard is damaged.
        """
        result_ME = np.empty((len(rows_M), self.shape[1]), np.float32)
        numbers_M = np.searchsorted(self.ends, rows_M, side="right") - 1
        for number in np.unique(numbers_M).tolist():
            here_M = numbers_M == number
            part_NS = self._mapped(self._paths[number])[rows_M[here_M] - self.ends[number]]
            result_ME[here_M] = self.form.decode(part_NS) if self.form else part_NS
        return result_ME

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        """The rows of each shard in a range, as they are stored, and where in the range they begin."""
        for number in range(bisect.bisect_right(self.ends, start) - 1, bisect.bisect_left(self.ends, stop)):
            first, end = self.ends[number], self.ends[number + 1]
            shard_NS = self._shard(self._paths[number])
            part_NS = shard_NS[max(start - first, 0) : min(stop, end) - first]
            if len(part_NS):
                yield max(first - start, 0), part_NS


def load(folder: Path, name: str) -> tuple[np.ndarray, list[str]]:
    """All embeddings [N, E] of a name, and their ids.

    Raises:
      UserError: a shard is missing or damaged.
    """
    return StoredRows(folder, name)[:], load_ids(folder, name)


def load_of_all_hosts(folder: Path, name: str) -> np.ndarray:
    """All embeddings [N, E] of a name, once every host has encoded its shards."""
    hosts.on_first(lambda: None)  # from here on the files of all hosts are there
    return load(folder, name)[0]


def load_ids(folder: Path, name: str) -> list[str]:
    """The ids that `load` gives, without the embeddings.

    Raises:
      UserError: a shard is missing, or a list of ids is damaged.
    """
    return list(itertools.chain.from_iterable(map(_read_ids, _whole_paths(folder, name))))


def encode_rows(
    tokens: Iterable[Sequence[int]], embed: Embed, batch_tokens: int, longest: int, multiple: int
) -> np.ndarray:
    """The embeddings [N, E] of rows, in their order; [0, 0] of none.

    Args:
      tokens: of each row; made in a thread where they are made as they are read.
      batch_tokens, longest, multiple: as in `encode`.

    Raises:
      UserError: an embedding is not finite.
    """

    def size(length: int) -> int:
        return max(multiple, batch_tokens // length // multiple * multiple)

    with closing(sharded_map.ahead(batches(tokens, size, longest), _AHEAD)) as made:
        embedded = list(_embedded(embed, made))
    if not embedded:
        return np.zeros((0, 0), np.float32)
    result_NE = np.empty((sum(len(rows) for rows, _ in embedded), embedded[0][1].shape[1]), np.float32)
    for rows, values_BE in embedded:
        result_NE[rows] = values_BE
    return result_NE


def encode_few(tokens: Sequence[Sequence[int]], embed: Embed, longest: int, multiple: int) -> np.ndarray:
    """Embeds a few rows, such as the queries of a moment, as one batch of as few shapes: rows are a power of 2.

    Args:
      tokens: of one row or more.
      longest, multiple: as in `encode`.

    Returns:
      float32 [N, E].
    """
    ids_BL = padded(tokens, few(len(tokens), multiple), min(rounded(max(map(len, tokens))), longest))
    return _finite(embed(ids_BL), len(tokens))


def encode_any(
    tokens: Sequence[Sequence[int]], embed: Embed, batch_tokens: int, longest: int, multiple: int
) -> np.ndarray:
    """`encode_few` of a few rows, else `encode_rows`."""
    if 0 < len(tokens) <= _FEW:
        return encode_few(tokens, embed, longest, multiple)
    return encode_rows(tokens, embed, batch_tokens, longest, multiple)


def _whole_paths(folder: Path, name: str) -> list[Path]:
    return sharded_map.whole(folder, name, ".npy", "encode again")


def _read_shard(path: Path, mapped: bool = False) -> np.ndarray:
    return files.read_array(sharded_map.verify(path, _REMEDY), _REMEDY, mapped)


def _ids_path(shard: Path) -> Path:
    return shard.with_suffix(".ids.json")


def _clipped_path(shard: Path) -> Path:
    return shard.with_suffix(".clipped.json")


def _read_ids(shard: Path) -> list[str]:
    return files.read_json(sharded_map.verify(_ids_path(shard), _REMEDY))


def _rows(
    members: Sequence[tuple[str, T]],
    tokens: Callable[[Sequence[T]], Sequence[Sequence[Sequence[int]]]],
    ids: list[str],
) -> Iterator[Sequence[int]]:
    """The rows of a shard's texts; appends to `ids` that of each, some texts ahead."""
    for start in range(0, len(members), _CHUNK):
        chunk = members[start : start + _CHUNK]
        for (id, _), rows in zip(chunk, tokens([text for _, text in chunk]), strict=True):
            ids += [id] * len(rows)
            yield from rows


def _embedded(embed: Embed, made: Iterable[tuple[list[int], np.ndarray]]) -> Iterator[tuple[list[int], np.ndarray]]:
    """The places of the rows of each batch, and their embeddings, in order.

    JAX computes a batch while the results of the one before are on their way.
    """
    sent: deque[tuple[list[int], Any]] = deque()
    for places, ids_BL in made:
        sent.append((places, embed(ids_BL)))
        if len(sent) > 1:
            places, values_BE = sent.popleft()
            yield places, _finite(values_BE, len(places))
    for places, values_BE in sent:
        yield places, _finite(values_BE, len(places))


def _finite(values_BE: Any, rows: int) -> np.ndarray:
    """The first rows of a batch's embeddings.

    Raises:
      UserError: one holds NaN or infinity.
    """
    values_BE = np.asarray(values_BE, np.float32)[:rows]
    if not np.isfinite(values_BE).all():
        raise UserError("an embedding is not finite: the parameters of the model are damaged, or its dtype overflows")
    return values_BE
