"""Texts to embeddings, in batches of texts of like length, and in files that a killed run goes on with.

NAME-00003-of-00012.npy            [rows, E], float32, or codes as `vector_codes` has them
NAME-00003-of-00012.ids.json       the ids of the rows, in order; of a text with several rows they are neighbours
NAME-00003-of-00012.keys.npy       of each row a hash of its tokens, 16 bytes; where the form says who made the vectors
NAME-00003-of-00012.sums.json      the sums of these, as `sharded_map` has them
NAME.json, NAME.ranges.npy         what the rows are, where `encode` was told; without these they are float32

Three things happen at once: a thread tokenises texts and makes batches of them, the caller's has them embedded, one
batch ahead of the one whose result it takes, and a third writes the shard before.
"""

import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts
from retrieval.search import sharded_map, vector_codes
from retrieval.search.sharded_map import Shards
from retrieval.search.text_batches import batches, few, padded, rounded
from retrieval.search.vector_codes import Form

_log = logging.getLogger(__name__)

T = TypeVar("T")

Embed = Callable[[np.ndarray], np.ndarray]
"""Padded token ids [B, L] to embeddings [B, E]; called with few different shapes."""

# Batches that lie ready, and texts that are tokenised at once.
_AHEAD, _CHUNK = 8, 1024
_FEW = 32  # texts that are embedded as one batch
_KEY = "S16"
_IDS, _KEYS = ".ids.json", ".keys.npy"  # beside the vectors of a shard
_REMEDY = "delete it and encode again"


class Shard(NamedTuple):
    """What a shard holds of its rows: ids, vectors as they are stored, and keys."""

    ids: list[str]
    stored_NS: np.ndarray
    keys_N: np.ndarray | None = None


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
    older: Sequence[Path] = (),
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
      older: folders of vectors that were made before; those of the same tokens and in the same form are copied.

    Raises:
      UserError: there are not `total` texts, or an embedding is not finite.
    """

    batch_tokens, reused, rows_made = min(batch_tokens, few(total or 1) * longest), 0, 0
    befores = [each for folder in older if form and (each := _Older.of(folder, name, form))]

    def make(members: Sequence[tuple[str, T]], move: Callable[[int], Any]) -> Shard:
        nonlocal reused, rows_made
        ids: list[str] = []
        keys: list[bytes] = []
        sizes = {"longest": longest, "multiple": multiple, "move": move}

        def tokenised() -> Iterator[Sequence[int]]:
            for start in range(0, len(members), _CHUNK):
                chunk = members[start : start + _CHUNK]
                for (id, _), rows in zip(chunk, tokens([text for _, text in chunk]), strict=True):
                    ids.extend([id] * len(rows))
                    keys.extend(map(_key, rows))
                    yield from rows

        if befores and form:
            rows = list(tokenised())
            stored_NS, is_new_N = _copied(befores, keys, form)
            new = [rows[place] for place in np.flatnonzero(is_new_N)]
            move(len(rows) - len(new))
            if new:
                stored_NS[is_new_N] = form.encode(encode_rows(new, embed, batch_tokens, **sizes))
            reused, rows_made = reused + len(rows) - len(new), rows_made + len(rows)
        else:
            stored_NS = encode_rows(tokenised(), embed, batch_tokens, **sizes)
            if form and len(stored_NS):  # of no text not even the dimensions are known
                stored_NS = form.encode(stored_NS)
        return Shard(ids, stored_NS, np.array(keys, _KEY) if form and form.maker else None)

    if form and hosts.is_first():
        vector_codes.write(folder, name, form)
    Shards(folder, name, ".npy", total, shard_size).write(texts, make, write, moves=True)
    if rows_made:
        where = f"{folder.parent.name}, {folder.name}, {name}"
        _log.info("%s: reused %s of %s vectors", where, f"{reused:,}", f"{rows_made:,}")


def _key(row: Sequence[int]) -> bytes:
    return hashlib.blake2b(np.asarray(row, np.int32).tobytes(), digest_size=16).digest()


def copy(source: Path, folder: Path, name: str, total: int, shard_size: int) -> None:
    """Copies this host's shards of a name that `encode` has written of as many texts; those that are there are kept."""
    if hosts.is_first() and vector_codes.path(source, name).exists():
        sharded_map.copy(vector_codes.path(source, name), vector_codes.path(folder, name))
    Shards(folder, name, ".npy", total, shard_size).copy(source)


def write(path: Path, shard: Shard) -> None:
    """Writes the files of a shard."""
    files.write_text(path.with_suffix(_IDS), json.dumps(shard.ids, ensure_ascii=False))
    files.write_array(path, shard.stored_NS)
    if shard.keys_N is not None:
        files.write_array(path.with_suffix(_KEYS), shard.keys_N)


class StoredRows:
    """The embeddings [N, E] of a name that `encode` has written, mapped into memory, and read when they are asked for.

    Rows are asked for as a range, or as numbers [M] in any order; of these only their bytes are read.

    Attributes:
      paths: the shards.
      form: how they are stored; None of what is not noted, which is float32.
      ends: 0, and the row behind the last one of each shard.
    """

    def __init__(self, folder: Path, name: str):
        """Reads the ids of all shards."""
        self.paths = _whole_paths(folder, name)
        self.form = vector_codes.read(folder, name)
        self.ends = list(itertools.accumulate((len(_read_ids(path)) for path in self.paths), initial=0))
        self._mapped = functools.cache(functools.partial(_read_shard, mapped=True))

    @property
    def shape(self) -> tuple[int, int]:
        """N and E."""
        return len(self), self.form.dim if self.form else self._width

    @functools.cached_property
    def _width(self) -> int:
        return _read_shard(self.paths[0]).shape[1]

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """The rows, float32."""
        return self._read(rows, self.shape[1], np.dtype(np.float32), self.form.decode if self.form else np.asarray)

    def stored(self, rows: slice | np.ndarray) -> np.ndarray:
        """The rows [N, S] as the files have them."""
        width, dtype = (self.form.width, self.form.stored_type) if self.form else (self._width, np.dtype(np.float32))
        return self._read(rows, width, dtype, np.asarray)

    def _read(
        self, rows: slice | np.ndarray, width: int, dtype: np.dtype, made: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        rows_M = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        result = np.empty((len(rows_M), width), dtype)  # concatenated, the parts would be there twice
        shards_M = np.searchsorted(self.ends, rows_M, side="right") - 1
        for shard in np.unique(shards_M).tolist():
            is_here_M = shards_M == shard
            result[is_here_M] = made(self._mapped(self.paths[shard])[rows_M[is_here_M] - self.ends[shard]])
        return result


class _Older:
    """Vectors that were made before, by the keys of their rows."""

    def __init__(self, rows: StoredRows):
        """Reads the keys of all shards, and looks whether their vectors are whole."""
        self.rows = rows
        keys_N = np.concatenate([_read_shard(path.with_suffix(_KEYS)) for path in rows.paths])
        self._order = np.argsort(keys_N, kind="stable")
        self._sorted = keys_N[self._order]
        for path in rows.paths:
            sharded_map.verify(path, _REMEDY)

    @classmethod
    def of(cls, folder: Path, name: str, form: Form) -> "_Older | None":
        """Those of a folder, where they have this form; the log says so where they are damaged."""
        if not vector_codes.path(folder, name).exists():
            return None
        try:
            rows = StoredRows(folder, name)
            return cls(rows) if form.is_like(rows.form) and len(rows) else None
        except UserError as error:
            _log.warning("nothing is reused: %s", error)
            return None

    def places(self, keys: Sequence[bytes]) -> np.ndarray:
        """The older row of each key, -1 where there is none."""
        keys_N = np.array(keys, _KEY)
        at_N = np.minimum(np.searchsorted(self._sorted, keys_N), len(self._sorted) - 1)
        return np.where(self._sorted[at_N] == keys_N, self._order[at_N], -1)


def _copied(befores: Sequence[_Older], keys: Sequence[bytes], form: Form) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, S] as they are stored, of those keys that have one, and whether a key has none, bool [N]."""
    stored_NS, is_new_N = np.empty((len(keys), form.width), form.stored_type), np.ones(len(keys), bool)
    for before in befores:
        places_N = before.places(keys)
        is_there_N = is_new_N & (places_N >= 0)
        stored_NS[is_there_N] = before.rows.stored(places_N[is_there_N])
        is_new_N &= ~is_there_N
    return stored_NS, is_new_N


def load(folder: str | Path, name: str) -> tuple[np.ndarray, list[str]]:
    """All embeddings [N, E] of a name, and their ids."""
    folder = Path(folder)
    return StoredRows(folder, name)[:], load_ids(folder, name)


def load_of_all_hosts(folder: Path, name: str) -> np.ndarray:
    """All embeddings [N, E] of a name, once every host has encoded its shards."""
    hosts.on_first(lambda: None)  # from here on the files of all hosts are there
    return StoredRows(folder, name)[:]


def load_ids(folder: Path, name: str) -> list[str]:
    """The ids that `load` gives, without the embeddings."""
    return list(itertools.chain.from_iterable(map(_read_ids, _whole_paths(folder, name))))


def encode_rows(
    tokens: Iterable[Sequence[int]],
    embed: Embed,
    batch_tokens: int,
    longest: int,
    multiple: int,
    move: Callable[[int], Any] = lambda rows: None,
) -> np.ndarray:
    """The embeddings [N, E] of rows, in their order; [0, 0] of none.

    Args:
      tokens: of each row; a thread makes those that are read. Of a sequence no batch has many more rows than all.
      batch_tokens, longest, multiple: as in `encode`.
      move: is told how many rows a batch had, when it is embedded.

    Raises:
      UserError: an embedding is not finite.
    """
    most = few(len(tokens) or 1) if isinstance(tokens, Sequence) else batch_tokens

    def size(length: int) -> int:
        return max(multiple, min(batch_tokens // length, most) // multiple * multiple)

    with closing(sharded_map.ahead(batches(tokens, size, longest), _AHEAD)) as made:
        # A pair has the next batch too: JAX computes it while the results of this one are on their way.
        sent = itertools.chain(((rows, embed(ids_BL)) for rows, ids_BL in made), [([], None)])
        embedded: list[tuple[list[int], np.ndarray]] = []
        for (rows, values_BE), _ in itertools.pairwise(sent):
            embedded.append((rows, finite(values_BE, len(rows))))
            move(len(rows))
    if not embedded:
        return np.zeros((0, 0), np.float32)
    result_NE = np.empty((sum(len(rows) for rows, _ in embedded), embedded[0][1].shape[1]), np.float32)
    for rows, values_BE in embedded:
        result_NE[rows] = values_BE
    return result_NE


def encode_few(tokens: Sequence[Sequence[int]], embed: Embed, longest: int, multiple: int) -> np.ndarray:
    """Embeds one row or a few, such as the queries of a moment, as one batch of few shapes: rows are a power of 2.

    `longest` and `multiple` are as in `encode`.
    """
    ids_BL = padded(tokens, few(len(tokens), multiple), min(rounded(max(map(len, tokens))), longest))
    return finite(embed(ids_BL), len(tokens))


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


def _read_ids(shard: Path) -> list[str]:
    return files.read_json(sharded_map.verify(shard.with_suffix(_IDS), _REMEDY))


def finite(values_BE: Any, rows: int) -> np.ndarray:
    """The first rows of a batch's embeddings."""
    values_BE = np.asarray(values_BE, np.float32)[:rows]
    if not np.isfinite(values_BE).all():
        raise UserError("an embedding is not finite: the parameters of the model are damaged, or its dtype overflows")
    return values_BE
