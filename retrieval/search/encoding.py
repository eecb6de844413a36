"""A collection of texts to sharded embedding files: resumable to the shard, and short texts pay for no padding.

NAME-00003-of-00012.npy        float32 [rows, E]
NAME-00003-of-00012.ids.json   the ids of the rows, in order; of a text with several rows they are neighbours

Three things happen at once: a thread tokenises texts and makes batches of them, the caller's has them embedded, two
batches at a time on one device, and a third writes the shard before.
"""

import contextlib
import itertools
import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from retrieval import files, terminal
from retrieval.errors import UserError
from retrieval.search.exact import finite_embeddings

T = TypeVar("T")

Embed = Callable[[np.ndarray], np.ndarray]
"""Padded token ids [B, L] to embeddings [B, E]; called with few different shapes, from several threads."""

# Batches that lie ready, and texts that are tokenised at once. Where a shard ends, what is left over of every length is
# a batch: while these are embedded, the first ones of the next shard are made.
_AHEAD, _CHUNK = 8, 1024
# Batches that are embedded at once. On a CPU what has a single thread in one of them goes along with the products of
# the other: a tenth more texts a second on 2 cores. An accelerator computes while the other is on its way.
_AT_ONCE = 2


class _Batch(NamedTuple):
    """Token ids [B, L] of some rows of a shard; the rows of `ids` beyond them are padding."""

    rows: list[int]
    ids: np.ndarray


class _Embedded(NamedTuple):
    """The embeddings [B, E] of some rows of a shard."""

    rows: list[int]
    values: np.ndarray


class _Complete(NamedTuple):
    """There are no more batches of a shard."""

    path: Path
    ids: list[str]


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
    process: int | None = None,
    processes: int | None = None,
) -> None:
    """Writes the embeddings of a process's shards below `folder`; those that are there already are kept.

    A shard's bytes depend on its texts and the sizes below alone: not on who wrote it, or after how many kills.

    Args:
      texts: ids and texts, in order; those of one shard are in memory at a time.
      total: how many there are.
      tokens: of each of some texts, the token ids of its rows, special tokens included; called in a thread.
      batch_tokens: padded tokens of a batch; fixes the memory.
      longest: no text has more tokens, and none is padded to more.
      multiple: the number of rows of a batch is a multiple of it (the number of devices).
      process, processes: which of how many processes this is; by default, what JAX says.

    Raises:
      UserError: there are not `total` texts, or an embedding is not finite.
    """
    process = jax.process_index() if process is None else process
    processes = jax.process_count() if processes is None else processes
    count = max(1, -(-total // shard_size))
    paths = {shard: _path(folder, name, shard, count) for shard in shards_of(process, processes, count)}
    for path in paths.values():
        files.remove_temporaries(folder, f"{path.stem}.*")  # not those of another process
    paths = {shard: path for shard, path in paths.items() if not path.exists()}

    def work() -> Iterator[_Batch | _Complete]:
        for shard, members in _shards(texts, total, shard_size, paths):
            ids: list[str] = []
            yield from _batches(_rows(members, tokens, ids), batch_tokens, longest, multiple)
            yield _Complete(paths[shard], ids)

    progress = terminal.progress(total=len(paths), desc=f"encode {folder.parent.name}/{folder.name}/{name}")
    embedded, writing = [], None
    with progress, contextlib.closing(_ahead(work())) as made, ThreadPoolExecutor(1) as writer:
        for item in _embedded(embed, made, _at_once(multiple)):
            if isinstance(item, _Embedded):
                embedded.append(item)
                continue
            if writing:
                writing.result()
            writing = writer.submit(_write, item.path, item.ids, _in_order(embedded, len(item.ids)))
            embedded = []
            progress.update()
        if writing:
            writing.result()


def copy(source: Path, folder: Path, name: str, total: int, shard_size: int) -> None:
    """Copies a process's shards of a name that `encode` has written of as many texts; those that are there are kept."""
    count = max(1, -(-total // shard_size))
    for shard in shards_of(jax.process_index(), jax.process_count(), count):
        path = _path(folder, name, shard, count)
        files.remove_temporaries(folder, f"{path.stem}.*")
        if not path.exists():
            written = _path(source, name, shard, count)
            files.copy(_ids_path(written), _ids_path(path))
            files.copy(written, path)


def shards_of(process: int, processes: int, count: int) -> range:
    """Which of `count` shards a process encodes."""
    return range(process, count, processes)


def load(folder: Path, name: str) -> tuple[np.ndarray, list[str]]:
    """All embeddings [N, E] of a name, and their ids.

    Raises:
      UserError: a shard is missing, damaged, of another size than the others, or holds NaN or infinity.
    """
    paths = shard_paths(folder, name)
    ids = [read_ids(path) for path in paths]
    ends = list(itertools.accumulate(map(len, ids), initial=0))
    embeddings_NE = None
    for path, start, end in zip(paths, ends, ends[1:]):
        shard_NE = read_shard(path)
        if embeddings_NE is None:  # all at once: concatenated in the end, they would be there twice
            embeddings_NE = np.empty((ends[-1], shard_NE.shape[1]), np.float32)
        expected = (end - start, embeddings_NE.shape[1])
        if shard_NE.shape != expected:
            raise UserError(f"{path}: embeddings {shard_NE.shape} where {expected} belong; delete it and encode again")
        embeddings_NE[start:end] = shard_NE
    assert embeddings_NE is not None, "`shard_paths` gives one or more"
    return embeddings_NE, list(itertools.chain.from_iterable(ids))


def load_ids(folder: Path, name: str) -> list[str]:
    """The ids that `load` gives, without the embeddings.

    Raises:
      UserError: a shard is missing, or a list of ids is damaged.
    """
    return list(itertools.chain.from_iterable(map(read_ids, shard_paths(folder, name))))


def encode_rows(
    tokens: Sequence[Sequence[int]], embed: Embed, batch_tokens: int, longest: int, multiple: int
) -> np.ndarray:
    """Embeds rows in batches of like length, and puts them back in order."""
    batches = _batches(tokens, batch_tokens, longest, multiple)
    embedded = [batch for batch in _embedded(embed, batches, _at_once(multiple)) if isinstance(batch, _Embedded)]
    return _in_order(embedded, len(tokens))


def encode_few(tokens: Sequence[Sequence[int]], embed: Embed, longest: int, multiple: int) -> np.ndarray:
    """Embeds a few rows, such as the queries of a moment, as one batch of as few shapes: rows are a power of 2.

    Args:
      tokens: of one row or more.
      longest, multiple: as in `encode`.

    Returns:
      float32 [N, E].
    """
    rows = -(-(1 << (len(tokens) - 1).bit_length()) // multiple) * multiple
    ids_BL = np.zeros((rows, min(_round_up(max(map(len, tokens))), longest)), np.int32)
    for row, ids in enumerate(tokens):
        ids_BL[row, : len(ids)] = ids
    return _embed(embed, _Batch(list(range(len(tokens))), ids_BL)).values


def _path(folder: Path, name: str, shard: int, count: int) -> Path:
    return folder / f"{name}-{shard:05d}-of-{count:05d}.npy"


def shard_paths(folder: Path, name: str) -> list[Path]:
    """The shards of a name, in order, all of which are there."""
    paths = sorted(folder.glob(f"{name}-*-of-*.npy"))
    if not paths or len(paths) != int(paths[0].stem.rpartition("-")[2]):
        raise UserError(f"{folder}: {len(paths)} shards of '{name}', not all that there should be; encode again")
    return paths


def _write(path: Path, ids: list[str], embeddings_NE: np.ndarray) -> None:
    """The ids come first: a shard whose embeddings are there is finished."""
    files.write_text(_ids_path(path), json.dumps(ids, ensure_ascii=False))
    with files.atomic(path) as temporary, temporary.open("wb") as file:
        np.save(file, embeddings_NE, allow_pickle=False)


def read_shard(path: Path) -> np.ndarray:
    stored = files.read_array(path, "delete it and encode again")
    try:
        return finite_embeddings(stored, "stored")
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: damaged ({error}); delete it and encode again") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _ids_path(shard: Path) -> Path:
    return shard.with_suffix(".ids.json")


def read_ids(shard: Path) -> list[str]:
    path = _ids_path(shard)
    ids = files.read_json(path)
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise UserError(f"{path}: not a list of ids; delete it and its shard, and encode again")
    return ids


def _shards(
    texts: Iterable[tuple[str, T]], total: int, shard_size: int, wanted: Collection[int]
) -> Iterator[tuple[int, list[tuple[str, T]]]]:
    """The numbers and the texts of the wanted shards; what comes after the last of them is not read."""
    texts = iter(texts)
    for shard in range(max(wanted, default=-1) + 1):
        part = itertools.islice(texts, shard_size)
        if shard not in wanted:
            deque(part, maxlen=0)
            continue
        members = list(part)
        if len(members) != min(total - shard * shard_size, shard_size):
            raise UserError(f"there are no longer {total} texts: their file changed while it was read; encode again")
        yield shard, members


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


def _ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items, made in a thread that is a few ahead; an exception there is raised here.

    Closed early, it leaves no thread behind.
    """
    end = object()
    with ThreadPoolExecutor(1) as pool:
        try:
            made: deque[Future[Any]] = deque(pool.submit(next, items, end) for _ in range(_AHEAD))
            while (item := made.popleft().result()) is not end:
                made.append(pool.submit(next, items, end))
                yield item
        finally:
            pool.shutdown(cancel_futures=True)


def _batches(tokens: Iterable[Sequence[int]], batch_tokens: int, longest: int, multiple: int) -> Iterator[_Batch]:
    """Batches of rows of like length, each as soon as it is full, and in the end what is left over of every length.

    L is one of few lengths and B depends on L alone, so few shapes compile.
    """
    waiting: dict[int, list[tuple[int, Sequence[int]]]] = defaultdict(list)

    def batch(length: int) -> _Batch:
        members = waiting.pop(length)
        ids_BL = np.zeros((size(length), length), np.int32)
        for place, (_, ids) in enumerate(members):
            ids_BL[place, : len(ids)] = ids
        return _Batch([row for row, _ in members], ids_BL)

    def size(length: int) -> int:
        return max(multiple, batch_tokens // length // multiple * multiple)

    for row, ids in enumerate(tokens):
        length = min(_round_up(len(ids)), longest)
        waiting[length].append((row, ids))
        if len(waiting[length]) == size(length):
            yield batch(length)
    for length in sorted(waiting):
        yield batch(length)


def lengths_up_to(longest: int) -> list[int]:
    """The lengths to which texts of up to so many tokens are padded."""
    return sorted({min(_round_up(length), longest) for length in range(1, longest + 1)})


def _round_up(length: int) -> int:
    """To a multiple of 16 up to 64, and of 32 beyond: at most ten shapes for documents of 256 tokens."""
    step = 16 if length <= 64 else 32
    return -(-max(length, 1) // step) * step


def _at_once(devices: int) -> int:
    """Batches that are embedded at once.

    All devices, other hosts' too, must get programs in the same order. And two threads crash a GPU's process: XLA
    records the kernels of one while the other starts its own.
    """
    return _AT_ONCE if devices == 1 and jax.default_backend() != "gpu" else 1


def _embedded(embed: Embed, items: Iterable[_Batch | _Complete], at_once: int) -> Iterator[_Embedded | _Complete]:
    """The items in order, the batches as their embeddings."""
    with ThreadPoolExecutor(at_once) as pool:
        sent: deque[Future[_Embedded]] = deque()
        for item in items:
            if isinstance(item, _Batch):
                sent.append(pool.submit(_embed, embed, item))
            while len(sent) > (at_once if isinstance(item, _Batch) else 0):
                yield sent.popleft().result()
            if isinstance(item, _Complete):
                yield item
        for future in sent:
            yield future.result()


def _embed(embed: Embed, batch: _Batch) -> _Embedded:
    values_BE = np.asarray(embed(batch.ids), np.float32)[: len(batch.rows)]
    if not np.isfinite(values_BE).all():
        raise UserError("an embedding is not finite: the parameters of the model are damaged, or its dtype overflows")
    return _Embedded(batch.rows, values_BE)


def _in_order(embedded: Sequence[_Embedded], count: int) -> np.ndarray:
    """[count, E] out of what batches gave; [0, 0] where there were none."""
    if not embedded:
        return np.zeros((0, 0), np.float32)
    result_NE = np.empty((count, embedded[0].values.shape[1]), np.float32)
    for rows, values_BE in embedded:
        result_NE[rows] = values_BE
    return result_NE
