"""A small map-and-shuffle over a process pool: the local counterpart of Beam for `prepare`.

A phase is a set of independent tasks. A task writes one file of `(tag, key, value)` items, sorted into buckets by key,
whole or not at all. A task whose file is there is not run again. No more is needed to resume. The next phase has one
task per bucket and reads that bucket from every file of the phases before it. Neither the items that a task writes nor
those of a bucket need to fit in memory. The values of one key do.
"""

import collections
import concurrent.futures
import contextlib
import io
import itertools
import json
import multiprocessing
import operator
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from retrieval.common import files, terminal
from retrieval.common.errors import UserError
from retrieval.common.runtime import hashing
from retrieval.data.shards.external_sort import Sorter

# Of a segment: the size of its tags' names, the number of buckets, the size of its runs. Of a run: where it begins.
_HEADER, _PLACE = struct.Struct("<3Q"), struct.Struct("<Q")
# What reading a file raises that is none of items.
_DAMAGE = (ValueError, TypeError, AttributeError, OverflowError, MemoryError, struct.error, msgpack.UnpackException)
Task = tuple[Path, tuple]  # its output, and further arguments
# Packed items that a task holds before it writes them.
_MEMORY = 64 << 20
# What a terminal sends to all processes that were started in it.
_OF_TERMINALS = {signal.SIGINT, signal.SIGHUP}
# How workers start: a fork would inherit the locks of JAX's and TensorFlow's threads.
_START = multiprocessing.get_context("spawn")


def run_tasks(name: str, tasks: Iterable[Task], function: Callable, workers: int, total: int | None = None) -> None:
    """Calls `function(output, *arguments)` in worker processes for every task whose `output` does not exist yet.

    The tasks are drawn as workers come free, so an endless iterator of large arguments is fine.

    Raises:
      UserError: a worker was killed (out of memory, most often); what was finished is kept.
    """
    pending: set[concurrent.futures.Future] = set()
    with _deaf():  # for the tracker of its semaphores is a process, too
        pool = concurrent.futures.ProcessPoolExecutor(workers, _START, _end_with_parent)
    with pool, terminal.progress(desc=name, total=total, unit="task") as progress:
        try:
            for output, arguments in tasks:
                if output.exists():
                    progress.update()
                    continue
                with _deaf():  # which may start a worker
                    pending.add(pool.submit(function, output, *arguments))
                if len(pending) > 2 * workers:
                    progress.update(_collect(pending, concurrent.futures.FIRST_COMPLETED))
            progress.update(_collect(pending, concurrent.futures.ALL_COMPLETED))
        except concurrent.futures.process.BrokenProcessPool as error:
            remedy = "start again, which goes on from there, with fewer prepare.workers or more prepare.shards"
            raise UserError(f"{name}: a worker was killed, most often for lack of memory; {remedy}") from error
        except KeyboardInterrupt:  # or a preemption
            # There is no time to wait; what they write is whole or not.
            for worker in multiprocessing.active_children():
                worker.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """A process that starts inside never hears these: its parent does too, and ends it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_TERMINALS)


def _end_with_parent() -> None:
    """Ends this worker when its parent is killed; by itself it would wait for tasks forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a worker has a parent"
    threading.Thread(target=lambda: parent.join() or os._exit(1), daemon=True).start()


def write_items(path: Path, items: Iterable[tuple[str, Any, Any]], num_buckets: int, memory: int = _MEMORY) -> None:
    """Writes items as segments of `memory` bytes, in each of which a bucket of a tag is one run of bytes."""
    with files.atomic(path) as temporary, temporary.open("wb") as file:
        pack: Callable[[Any], bytes] = msgpack.Packer().pack
        runs, size = collections.defaultdict(list), 0
        for tag, key, value in items:
            bucket = key if isinstance(key, int) else hashing.number(key)
            packed = pack((key, pack(value)))
            runs[tag, bucket % num_buckets].append(packed)
            size += len(packed)
            if size > memory:
                _write_segment(file, runs, num_buckets)
                runs, size = collections.defaultdict(list), 0
        _write_segment(file, runs, num_buckets)


def read_items(folders: Iterable[Path], tag: str, bucket: int | None = None) -> Iterator[tuple[Any, Any]]:
    """Keys and values of a tag, of one bucket or of all, one after the other."""
    return ((key, msgpack.unpackb(packed)) for path in _paths(folders) for key, packed in _read_run(path, tag, bucket))


def read_groups(inputs: Sequence[tuple[Path, str]], bucket: int, scratch: Path) -> Iterator[tuple[Any, list[list]]]:
    """For every key of a bucket, in order: the key and its values, one list per input.

    Args:
      inputs: folders, each with a tag.
      scratch: folder for temporary files.
    """
    with Sorter(scratch) as sorter:
        for position, (folder, tag) in enumerate(inputs):
            for key, packed in itertools.chain.from_iterable(_read_run(p, tag, bucket) for p in _paths([folder])):
                sorter.add((key, position, packed))
        for key, group in itertools.groupby(sorter, key=operator.itemgetter(0)):
            values: list[list] = [[] for _ in inputs]
            for _, position, packed in group:
                values[position].append(msgpack.unpackb(packed))
            yield key, values


def _paths(folders: Iterable[Path]) -> list[Path]:
    return sorted(path for folder in folders for path in folder.iterdir() if path.suffix in (".items", ".counts"))


def _write_segment(file: BinaryIO, runs: Mapping[tuple[str, int], list[bytes]], num_buckets: int) -> None:
    """A segment: its header, the names of its tags, where each run begins and ends, the runs.

    A reader of one bucket so reads a few bytes of the table, however many buckets there are.
    """
    tags = sorted({tag for tag, _ in runs})
    in_order = [runs.get((tag, bucket), []) for tag in tags for bucket in range(num_buckets)]
    places = list(itertools.accumulate((sum(map(len, run)) for run in in_order), initial=0))
    names = json.dumps(tags).encode()
    file.write(_HEADER.pack(len(names), num_buckets, places[-1]) + names)
    file.write(struct.pack(f"<{len(places)}Q", *places))
    for run in in_order:
        file.writelines(run)


def _read_run(path: Path, tag: str, bucket: int | None) -> Iterator[tuple[Any, bytes]]:
    """Keys and packed values of a tag in every segment of a file.

    Raises:
      UserError: the file is not what `write_items` writes.
    """
    try:
        with path.open("rb") as file:
            while header := file.read(_HEADER.size):
                size_of_names, num_buckets, size = _HEADER.unpack(header)
                tags = json.loads(file.read(size_of_names))
                table = file.tell()
                body = table + (len(tags) * num_buckets + 1) * _PLACE.size
                if tag in tags:
                    first = tags.index(tag) * num_buckets + (bucket or 0)
                    runs = (first, first + (num_buckets if bucket is None else 1))
                    places = (os.pread(file.fileno(), _PLACE.size, table + run * _PLACE.size) for run in runs)
                    (start,), (end,) = map(_PLACE.unpack, places)
                    file.seek(body + start)
                    yield from msgpack.Unpacker(io.BytesIO(file.read(end - start)), use_list=False, max_buffer_size=0)
                file.seek(body + size)
    except _DAMAGE as error:
        raise UserError(f"{path}: damaged ({error}); delete {path.parent.parent} and start again") from error


def _collect(pending: set[concurrent.futures.Future], when: str) -> int:
    done, _ = concurrent.futures.wait(pending, return_when=when)
    pending -= done
    return len([future.result() for future in done])
