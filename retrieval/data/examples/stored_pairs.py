"""Labelled pairs that a stage wrote, by the numbers of their records, and shards of them in another order.

Records are numbered from 0 on through the shards, these in the order of their names.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.libraries import tf
from retrieval.data.examples import batches, task_kind
from retrieval.data.labelled import pair_shards
from retrieval.data.shards import tfrecords

_BATCH = 1024  # records that are parsed at a time


class Positive(NamedTuple):
    """The positive of a record: its id, and the token ids of title and text."""

    number: int
    document_id: int
    title: list[int]
    text: list[int]


class StoredPairs:
    """The shards of a folder."""

    def __init__(self, folder: Path):
        """Raises:
        UserError: there are none.
        """
        self._paths = sorted(folder.glob(pair_shards.PATTERN))
        if not self._paths:
            raise UserError(f"{folder}: no labelled pairs; --stage=pairs writes them")
        self.folder = folder

    @property
    def fingerprint(self) -> str:
        """Of the names and sizes of the shards, and of what was counted when they were written."""
        sizes = [[path.name, path.stat().st_size] for path in self._paths]
        return files.fingerprint([sizes, files.read_json(self.folder / "stats.json")])

    def document_ids(self, negatives: bool) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of records, and the ids of their positives, int64.

        Args:
          negatives: records without a hard negative are left out.
        """
        columns = [columns["document_id"] for columns in self._columns(("document_id",))]
        has_one = np.concatenate([np.diff(splits) > negatives for _, splits in columns])  # a record has its positive
        ids = np.concatenate([values[splits[:-1]] for values, splits in columns])
        return np.flatnonzero(has_one), ids[has_one]

    def positives(self, numbers: np.ndarray) -> Iterator[Positive]:
        """The positives of some records, whose numbers ascend."""
        start, names = 0, ("document_id", "titles", "title_lengths", "texts", "text_lengths")
        for columns in self._columns(names):
            count = len(columns["document_id"][1]) - 1
            first, last = np.searchsorted(numbers, [start, start + count])
            for number in numbers[first:last].tolist():
                place = number - start
                row = {name: values[splits[place] : splits[place + 1]] for name, (values, splits) in columns.items()}
                title, text = (row[f"{name}s"][: row[f"{name}_lengths"][0]].tolist() for name in ("title", "text"))
                yield Positive(number, int(row["document_id"][0]), title, text)
            start += count

    def write(self, folder: Path, numbers_TB: np.ndarray, lanes: int) -> None:
        """Writes shards that give batches [T, B] of records in this order, and `stats.json`, into an existing folder.

        Each lane of the batches has a file. Lane i fills rows i * B / lanes to (i + 1) * B / lanes of every batch.
        """
        # Of every record the number of its shard, and where in that it stands with its sums, in bytes.
        places = ((shard, *place) for shard, path in enumerate(self._paths) for place in tfrecords.places(path))
        place_M3 = np.array(list(places), np.int64)
        T, B = numbers_TB.shape
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(path.open("rb")) for path in self._paths]
            for lane, numbers in enumerate(numbers_TB.reshape(T, lanes, B // lanes).swapaxes(0, 1).reshape(lanes, -1)):
                with (folder / f"pairs-{lane:05d}-of-{lanes:05d}.tfrecord").open("wb") as written:
                    for shard, start, size in place_M3[numbers].tolist():
                        opened[shard].seek(start)
                        written.write(opened[shard].read(size))
        files.copy(self.folder / pair_shards.KNOWN, folder / pair_shards.KNOWN)
        statistics = files.read_json(self.folder / "stats.json")
        files.write_json(folder / "stats.json", statistics | {"shards": lanes, task_kind.IN_ORDER: True})

    def _columns(self, names: tuple[str, ...]) -> Iterator[dict[str, tuple[np.ndarray, np.ndarray]]]:
        """Some columns of the records, a number of records at a time: all values, and where those of a record begin."""
        features = {name: tf.io.RaggedFeature(tf.int64) for name in names}
        dataset = tf.data.TFRecordDataset([str(path) for path in self._paths]).batch(_BATCH)
        try:
            for records in dataset:
                parsed: Any = tf.io.parse_example(records, features)
                yield {name: (parsed[name].values.numpy(), parsed[name].row_splits.numpy()) for name in names}
        except tf.errors.OpError as error:
            raise batches.unreadable(f"{self.folder}", error) from error
