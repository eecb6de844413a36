"""Pairs of a prepared corpus in a file, so that systems which share no process train on the same ones."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

Rows = Mapping[str, np.ndarray]


def batches(path: Path, size: int, count: int) -> Iterator[Rows]:
    """The first batches of a file: arrays of `size` rows, under the names that a train step takes.

    Raises:
      ValueError: the file has fewer rows.
    """
    with np.load(path, allow_pickle=False) as columns:
        rows = {name: columns[name] for name in columns.files}
    if len(rows["query"]) < size * count:
        raise ValueError(f"{path}: {len(rows['query'])} rows are fewer than {count} batches of {size}")
    for start in range(0, size * count, size):
        yield {name: values[start : start + size] for name, values in rows.items()}


def tokens(rows: Rows) -> int:
    """How many tokens of a batch are none of padding."""
    return sum(int((rows[name] != 0).sum()) for name in ("query", "document"))
