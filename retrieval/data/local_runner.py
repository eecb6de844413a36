"""A small map-and-shuffle over a process pool: the local counterpart of Beam for `prepare`.

A phase is a set of independent tasks. A task writes one file of `(tag, key, value)` items, sorted into buckets by key,
whole or not at all; a task whose file is there is not run again, which is all that resuming takes. The next phase has
one task per bucket and reads that bucket from every file of the phases before it, so memory holds one bucket per
worker, however large the corpus.
"""

import collections
import concurrent.futures
import hashlib
import io
import json
import multiprocessing
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import tqdm

from retrieval import files
from retrieval.errors import UserError

_HEADER = struct.Struct("<Q")


def run_tasks(
    name: str,
    tasks: Iterable[tuple[Path, tuple]],
    function: Callable[..., None],
    workers: int,
    total: int | None = None,
) -> None:
    """Calls `function(output, *arguments)` in worker processes for every task whose `output` does not exist yet.

    The tasks are drawn as workers come free, so an endless iterator of large arguments is fine.

    Raises:
      UserError: a worker was killed (out of memory, most often); what was finished is kept.
    """
    context = multiprocessing.get_context("spawn")  # a fork would inherit the locks of JAX's and TensorFlow's threads
    pending: set[concurrent.futures.Future] = set()
    with (
        concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool,
        tqdm.tqdm(desc=name, total=total, unit="task", mininterval=2) as progress,
    ):
        try:
            for output, arguments in tasks:
                if output.exists():
                    progress.update()
                    continue
                pending.add(pool.submit(function, output, *arguments))
                if len(pending) > 2 * workers:
                    progress.update(_collect(pending, concurrent.futures.FIRST_COMPLETED))
            progress.update(_collect(pending, concurrent.futures.ALL_COMPLETED))
        except concurrent.futures.process.BrokenProcessPool as error:
            raise UserError(
                f"{name}: a worker process was killed, most often for lack of memory; start again to go on where it "
                "stopped, with fewer prepare.workers or more prepare.shards"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def write_items(path: Path, items: Iterable[tuple[str, Any, Any]], num_buckets: int) -> None:
    """Writes items so that each (tag, bucket) is one run of bytes: an index, then the runs."""
    runs: dict[str, list[bytes]] = collections.defaultdict(list)
    for tag, key, value in items:
        bucket = key if isinstance(key, int) else _hash(key)
        runs[f"{tag}-{bucket % num_buckets}"].append(msgpack.packb((key, value)))
    index, offset = {}, 0
    for name, packed in sorted(runs.items()):
        size = sum(map(len, packed))
        index[name] = (offset, size)
        offset += size
    header = json.dumps(index).encode()
    with files.atomic(path) as temporary, temporary.open("wb") as file:
        file.write(_HEADER.pack(len(header)) + header)
        for _, packed in sorted(runs.items()):
            file.writelines(packed)


def read_groups(folders: Iterable[Path], tags: Iterable[str], bucket: int) -> Iterator[tuple[Any, list[list]]]:
    """For every key of a bucket, in order: the key and its values, one list per tag."""
    tags = list(tags)
    groups: dict[Any, list[list]] = {}
    for path in sorted(path for folder in folders for path in folder.iterdir() if path.suffix in (".items", ".counts")):
        for position, tag in enumerate(tags):
            for key, value in _read_run(path, f"{tag}-{bucket}"):
                groups.setdefault(key, [[] for _ in tags])[position].append(value)
    yield from sorted(groups.items())


def _read_run(path: Path, name: str) -> Iterator[tuple[Any, Any]]:
    with path.open("rb") as file:
        (header_size,) = _HEADER.unpack(file.read(_HEADER.size))
        offset, size = json.loads(file.read(header_size)).get(name, (0, 0))
        if size:
            file.seek(_HEADER.size + header_size + offset)
            yield from map(tuple, msgpack.Unpacker(io.BytesIO(file.read(size)), max_buffer_size=0))


def _collect(pending: set[concurrent.futures.Future], when: str) -> int:
    done, rest = concurrent.futures.wait(pending, return_when=when)
    pending.clear()
    pending.update(rest)
    for future in done:
        future.result()
    return len(done)


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
