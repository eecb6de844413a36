"""Sorting more than fits in memory: sorted runs in a temporary file, merged as they are read."""

import heapq
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgpack

# Of a run, read at a time: a hundred runs are merged in less memory than one took to sort.
_PIECE = 1 << 19


class Sorter:
    """Takes records in any order, gives them in ascending order, and holds about `memory` bytes of them.

    A record is a tuple of str, int and bytes, and any two can be compared. To be used in a `with` statement. The
    temporary file has no name: after a kill nothing is left of it.
    """

    def __init__(self, folder: Path, memory: int = 64 << 20):
        """Args:
        folder: where the temporary file will be.
        """
        self._folder = folder
        self._memory = memory
        self._runs: list[tuple[int, int]] = []  # from where to where in the file
        self._held: list[tuple] = []
        self._size = 0

    def __enter__(self) -> "Sorter":
        self._file = tempfile.TemporaryFile(dir=self._folder)
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def add(self, record: tuple) -> None:
        """One more record, before any is read."""
        self._held.append(record)
        self._size += sys.getsizeof(record) + sum(map(sys.getsizeof, record))
        if self._size > self._memory:
            self._write_run()

    def __iter__(self) -> Iterator[tuple]:
        self._held.sort()
        self._file.flush()
        return heapq.merge(self._held, *(self._read_run(start, end) for start, end in self._runs))

    def _write_run(self) -> None:
        start = self._file.tell()
        self._file.writelines(map(msgpack.Packer().pack, sorted(self._held)))
        self._runs.append((start, self._file.tell()))
        self._held, self._size = [], 0

    def _read_run(self, start: int, end: int) -> Iterator[tuple]:
        unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=0)
        while start < end:
            piece = os.pread(self._file.fileno(), min(_PIECE, end - start), start)
            start += len(piece)
            unpacker.feed(piece)
            yield from unpacker
