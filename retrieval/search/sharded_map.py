"""A function over many items, one shard of them after the other, each a file that is written whole.

    NAME-00003-of-00012.SUFFIX

A shard's bytes depend on its items alone: not on who wrote it, or after how many kills. Those that are there are kept.
The hosts of a pod take every n-th shard. While one is made, a thread reads the items of the next, and another writes
the one before.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import jax

from retrieval import files, terminal
from retrieval.errors import UserError

T = TypeVar("T")
R = TypeVar("R")


def shard_paths(folder: Path, name: str, suffix: str, total: int, shard_size: int) -> list[Path]:
    """The files of so many items, in order; of no item one that is empty."""
    count = max(1, -(-total // shard_size))
    return [folder / f"{name}-{shard:05d}-of-{count:05d}{suffix}" for shard in range(count)]


def missing(paths: Sequence[Path]) -> dict[int, Path]:
    """This host's shards that are not there, by their numbers; what a kill left of its own is deleted."""
    own = range(jax.process_index(), len(paths), jax.process_count())
    for shard in own:
        files.remove_temporaries(paths[shard].parent, f"{paths[shard].stem}.*")
    return {shard: paths[shard] for shard in own if not paths[shard].exists()}


def write_shards(
    paths: Sequence[Path],
    items: Iterable[T],
    total: int,
    shard_size: int,
    make: Callable[[list[T]], R],
    write: Callable[[Path, R], None],
) -> None:
    """Writes the shards of this host that are not there.

    Args:
      paths: those of `shard_paths`.
      items: in order; those of two shards are in memory at a time.
      make: what a shard holds, of its items.
      write: writes that; the file is there once it is whole.

    Raises:
      UserError: there are not `total` items.
    """
    wanted = missing(paths)
    folder = paths[0].parent
    progress = terminal.progress(total=len(wanted), desc=f"{folder.parent.name}/{folder.name}")
    read = _parts(items, total, shard_size, wanted)
    with progress, contextlib.closing(ahead(read, 1)) as parts, ThreadPoolExecutor(1) as writer:
        writing: Future | None = None
        for shard, members in parts:
            made = make(members)
            if writing:
                writing.result()
            writing = writer.submit(write, wanted[shard], made)
            progress.update()
        if writing:
            writing.result()


def ahead(items: Iterator[T], count: int) -> Generator[T, None, None]:
    """The same items, made in a thread that is so many ahead; an exception there is raised here.

    Closed early, it leaves no thread behind.
    """
    end = object()
    with ThreadPoolExecutor(1) as pool:
        try:
            made: deque[Future[Any]] = deque(pool.submit(next, items, end) for _ in range(count))
            while (item := made.popleft().result()) is not end:
                made.append(pool.submit(next, items, end))
                yield item
        finally:
            pool.shutdown(cancel_futures=True)


def _parts(items: Iterable[T], total: int, shard_size: int, wanted: Iterable[int]) -> Iterator[tuple[int, list[T]]]:
    """The wanted shards and their items; what comes after the last of them is not read."""
    items, start = iter(items), 0
    for shard in wanted:
        members = list(itertools.islice(items, (shard - start) * shard_size, (shard - start + 1) * shard_size))
        if len(members) != min(total - shard * shard_size, shard_size):
            raise UserError(
                f"there are no longer {total} items: their file changed while it was read; start the stage again"
            )
        start = shard + 1
        yield shard, members
