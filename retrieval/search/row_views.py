"""Embeddings seen in another way, a range of rows at a time: cut to their first dimensions, or as codes.

Nothing is copied as a whole. Shape letters: N rows, E dimensions, S stored numbers of a row, M rows in any order.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from retrieval.search import vector_codes
from retrieval.search.exact import Rows
from retrieval.search.vector_codes import Form

_BLOCK = 65_536  # rows that are in memory at a time
_LEAST_NORM = 1e-12


class Stored(Protocol):
    """Rows whose codes are there, such as those of files."""

    form: Form | None

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def stored(self, rows: slice, /) -> np.ndarray: ...


def cut(vectors_NE: np.ndarray, size: int, normalised: bool) -> np.ndarray:
    """The first dimensions of vectors; with `normalised` of length 1 again. Vectors of this size stay as they are."""
    if vectors_NE.shape[1] == size:
        return vectors_NE
    cut_NE = vectors_NE[:, :size]
    norm_N1 = np.linalg.norm(cut_NE, axis=1, keepdims=True) if normalised else 1
    return (cut_NE / np.maximum(norm_N1, _LEAST_NORM)).astype(np.float32)


class CutRows:
    """The first dimensions of rows."""

    def __init__(self, rows_NE: Rows, size: int, normalised: bool):
        """Args: as `cut`."""
        self._rows, self._size, self._normalised = rows_NE, size, normalised

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._rows), self._size

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return cut(self._rows[rows], self._size, self._normalised)

    def take(self, rows_M: np.ndarray) -> np.ndarray:
        """Some rows [M, E]."""
        return cut(take(self._rows, rows_M), self._size, self._normalised)


class CodedRows:
    """Codes [N, S] of rows, as `ExactIndex` takes them, each made when it is asked for."""

    def __init__(self, rows_NE: Rows, form: Form):
        self._rows, self._form = rows_NE, form

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._rows), self._form.width

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._form.typed(self._form.encode(self._rows[rows])[0])


class StoredCodes:
    """Codes [N, S] of rows, as `ExactIndex` takes them, that are stored already."""

    def __init__(self, rows_NE: Stored, form: Form):
        self._rows, self._form = rows_NE, form

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._rows), self._form.width

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._form.typed(self._rows.stored(rows))


def take(rows_NE: Any, rows_M: np.ndarray) -> np.ndarray:
    """Some rows [M, E] of an array, or of what has a `take`."""
    return rows_NE[rows_M] if isinstance(rows_NE, np.ndarray) else rows_NE.take(rows_M)


def blocks(rows_NE: Rows) -> Iterator[np.ndarray]:
    """The rows, some at a time."""
    for start in range(0, len(rows_NE), _BLOCK):
        yield rows_NE[start : start + _BLOCK]


def calibrated(form: Form, rows_NE: Rows) -> Form:
    """A form with the ranges of all rows, where it needs ranges: no value lies outside of them."""
    if not form.needs_ranges:
        return form
    of_blocks = np.stack([vector_codes.ranges_of(block_NE) for block_NE in blocks(rows_NE)])
    return form.calibrated(np.stack([of_blocks[:, 0].min(axis=0), of_blocks[:, 1].max(axis=0)]))
