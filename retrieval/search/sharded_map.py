"""A function over many items, one shard of them after the other, each a file that is written whole.

    NAME-00003-of-00012.SUFFIX       the shard; there may be others of its name beside it, such as its ids
    NAME-00003-of-00012.sums.json    the SHA-256 of these files; it comes last

A shard's bytes depend on its items alone: not on who wrote it, or after how many kills. One that is there and fits its
sums is kept. The hosts of a pod take every n-th shard. While one is made, a thread reads the items of the next, and
another writes the one before.
"""

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from retrieval.common import files, terminal
from retrieval.common.errors import UserError

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_AGAIN = "it is made again"


class Shards(NamedTuple):
    """The files of `total` items in a folder, `size` items in each; of no item there is one that is empty."""

    folder: Path
    name: str
    suffix: str
    total: int
    size: int

    @property
    def paths(self) -> list[Path]:
        """The files, in order."""
        count = max(1, -(-self.total // self.size))
        return [self.folder / f"{self.name}-{shard:05d}-of-{count:05d}{self.suffix}" for shard in range(count)]

    def missing(self) -> dict[int, Path]:
        """This host's shards that are not there, or damaged, by their numbers; what a kill left of them is deleted."""
        paths = self.paths
        own = range(jax.process_index(), len(paths), jax.process_count())
        for shard in own:
            files.remove_temporaries(paths[shard].parent, f"{paths[shard].stem}.*")
        return {shard: paths[shard] for shard in own if not is_whole(paths[shard])}

    def copy(self, source: Path) -> None:
        """Copies this host's shards of a folder that has the same ones; those that are there are kept."""
        for path in self.missing().values():
            copy(source / path.name, path)

    def write(
        self, items: Iterable[T], make: Callable[..., R], write: Callable[[Path, R], None], moves: bool = False
    ) -> None:
        """Writes the shards of this host that are not there, or not as they were written, each with its sums.

        Args:
          items: in order; those of two shards are in memory at a time.
          make: what a shard holds, of its items.
          write: writes that, and perhaps other files of the shard's name.
          moves: whether `make` also takes what moves the bar of progress on by so many items of the shard.

        Raises:
          UserError: there are not `total` items.
        """
        wanted = self.missing()
        count = sum(min(self.size, self.total - shard * self.size) for shard in wanted)
        desc = f"{self.folder.parent.name}/{self.folder.name}"
        progress = terminal.progress(total=count, desc=desc, unit=" items")

        def save(path: Path, made: R) -> None:
            write(path, made)
            seal(path)

        read = ahead(self._parts(items, wanted), 1)
        with progress, contextlib.closing(read) as parts, ThreadPoolExecutor(1) as writer:
            writing: Future | None = None
            for shard, members in parts:
                end = progress.n + len(members)

                def move(items: int) -> None:
                    progress.update(min(items, end - progress.n))  # noqa: B023 (of this shard)

                made = make(members, move) if moves else make(members)
                if writing:
                    writing.result()
                writing = writer.submit(save, wanted[shard], made)
                progress.update(end - progress.n)
            if writing:
                writing.result()

    def _parts(self, items: Iterable[T], wanted: Iterable[int]) -> Iterator[tuple[int, list[T]]]:
        """The wanted shards and their items; what comes after the last of them is not read."""
        items, start, size = iter(items), 0, self.size
        for shard in wanted:
            members = list(itertools.islice(items, (shard - start) * size, (shard - start + 1) * size))
            if len(members) != min(self.total - shard * size, size):
                raise UserError(f"there are no longer {self.total} items: their file changed; start the stage again")
            start = shard + 1
            yield shard, members


def is_whole(path: Path) -> bool:
    """Whether a shard is finished and as it was written; the log names a file that is not."""
    if not _sums_path(path).exists():
        return False
    try:
        files.verify_checksums(path.parent, _sums(path, _AGAIN), _AGAIN)
    except UserError as error:
        _log.warning("%s", error)
        return False
    return True


def whole(folder: Path, name: str, suffix: str, remedy: str) -> list[Path]:
    """The shards of a name, in order; `verify` looks at what is in them.

    Raises:
      UserError: one is missing.
    """
    paths = sorted(folder.glob(f"{name}-*-of-?????{suffix}"))
    if not paths or len(paths) != int(paths[0].stem.rpartition("-")[2]):
        raise UserError(f"{folder}: {len(paths)} shards of '{name}', not all that there should be; {remedy}")
    return paths


def verify(path: Path, remedy: str) -> Path:
    """A file of a shard, once its sum is that of what was written."""
    sums = _sums(path, remedy)
    files.verify_checksums(path.parent, {path.name: sums.get(path.name, "")}, remedy)
    return path


def seal(path: Path) -> None:
    """Finishes a shard whose files are all written."""
    parts = [part for part in path.parent.glob(f"{path.name.partition('.')[0]}.*") if part != _sums_path(path)]
    files.write_json(_sums_path(path), files.checksums(path.parent, parts))


def copy(source: Path, path: Path) -> None:
    """Copies a finished shard."""
    for name in _sums(source, _AGAIN):
        files.copy(source.with_name(name), path.with_name(name))
    files.copy(_sums_path(source), _sums_path(path))


def _sums_path(path: Path) -> Path:
    return path.with_name(f"{path.name.partition('.')[0]}.sums.json")


def _sums(path: Path, remedy: str) -> dict[str, str]:
    """The sums of the shard that a file is of."""
    where = _sums_path(path)
    sums = files.read_json(where) if where.exists() else None
    if not isinstance(sums, dict):
        raise UserError(f"{where}: {'missing' if sums is None else 'not a list of files and sums'}; {remedy}")
    return sums


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
