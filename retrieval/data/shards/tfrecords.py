"""TFRecord files: records of integers and floats, written whole or not at all, dealt out in turn, found by place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.libraries import tf

BEFORE, _BEHIND = 12, 4  # bytes around a record: its length and a sum of that, and a sum of the record


def serialized(integers: Mapping[str, Iterable[int]], floats: Mapping[str, Iterable[float]] | None = None) -> bytes:
    """A `tf.train.Example` of lists of numbers, by name."""
    of = tf.train
    features = {name: of.Feature(int64_list=of.Int64List(value=values)) for name, values in integers.items()}
    features |= {name: of.Feature(float_list=of.FloatList(value=values)) for name, values in (floats or {}).items()}
    return of.Example(features=of.Features(feature=features)).SerializeToString(deterministic=True)


@contextlib.contextmanager
def writer(path: Path) -> Iterator[Any]:
    """Writes a file of records, whole or not at all."""
    with files.atomic(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as records:
        yield records


def deal(records: Iterable[tuple[Any, bytes]], folder: Path, num_shards: int, stem: str) -> None:
    """Writes records, each after what it is ordered by, to shards in turn; their names begin with `stem`."""
    with contextlib.ExitStack() as stack:
        paths = [folder / f"{stem}-{shard:05d}-of-{num_shards:05d}.tfrecord" for shard in range(num_shards)]
        writers = [stack.enter_context(writer(path)) for path in paths]
        for number, (_, record) in enumerate(records):
            writers[number % num_shards].write(record)


def places(path: Path) -> Iterator[tuple[int, int]]:
    """Where each record of a file begins with its sums, and how long it is with them, in bytes.

    A `tf.data.Dataset` of the file would take a hundred times as long to begin.
    """
    with path.open("rb") as file:
        place = 0
        while header := file.read(BEFORE):
            size = BEFORE + int.from_bytes(header[:8], "little") + _BEHIND
            yield place, size
            place += size
            file.seek(place)


def records(path: Path) -> Iterator[bytes]:
    """The records of a file, one after the other.

    Their sums are not looked at: the file has one of its own, which was compared.
    """
    with path.open("rb") as file:
        for place, size in places(path):
            file.seek(place + BEFORE)
            yield file.read(size - BEFORE - _BEHIND)
