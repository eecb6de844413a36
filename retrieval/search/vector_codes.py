"""Vectors in fewer bytes: how they are stored, what that stands for, and inner products with it.

NAME.json          {precision, dim, truncated_from, normalised, maker}: the `Form` of the vectors of a name
NAME.ranges.npy    float32 [2, E], the least and the greatest value of each dimension, of int8
NAME.sums.json     the sums of these two, as `sharded_map` has them

| precision | stored | bytes |
|---|---|---|
| float32 | as it is | 4 E |
| bfloat16 | its bits, as uint16 | 2 E |
| int8 | a code from 0 to 255, less 128 | E |
| binary | a bit, whether the value is above 0, eight a byte, the first in its highest bit (`np.packbits`) | E / 8 |

A code of int8 is floor((x - min) / step), the step being (max - min) / 255 as in sentence-transformers 6. Values
outside of the range take the last code.

What is stored is s, and x is about offset + scale * s, with numbers for each dimension. So q.x is about
(q * scale).s + q.offset. The naive q.s forgets that scales differ, and can turn the order round.

Shape letters: N vectors, E dimensions, S stored numbers of a vector, Q queries; B queries and R vectors of a product.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.search import sharded_map

FLOAT32, BFLOAT16, INT8, BINARY = PRECISIONS = ("float32", "bfloat16", "int8", "binary")
_TYPES = {FLOAT32: np.float32, BFLOAT16: np.uint16, INT8: np.int8, BINARY: np.uint8}
_BITS = 8  # dimensions in a byte of bits
_STEPS, _SHIFT = 255, 128  # of int8, between the least and the greatest value, and what is subtracted from a code
_BLOCK = 65_536  # rows that are in memory at a time
_OF_MODEL = ("precision", "dim", "truncated_from", "normalised")
_REMEDY = "--stage=encode makes it again"


class Rows(Protocol):
    """Rows [N, E], or codes [N, S], whose slices are arrays, such as those of a file that is read when asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> np.ndarray: ...


def blocks(rows_NE: Rows) -> Iterator[np.ndarray]:
    """The rows, some at a time."""
    for start in range(0, len(rows_NE), _BLOCK):
        yield rows_NE[start : start + _BLOCK]


def products(precision: str, queries_BE: jax.Array, stored_RS: jax.Array) -> jax.Array:
    """The products [B, R], in float32, of what `Form.queries` made of queries, and what is stored."""
    if precision == BINARY:
        # All highest bits, then all second ones and so on: on a CPU it takes one query half as long if queries are
        # brought into this order, and not the bits into theirs.
        places = [(stored_RS >> np.uint8(_BITS - 1 - place)) & np.uint8(1) for place in range(_BITS)]
        stored_RS = jnp.concatenate(places, axis=1)
        B, E = queries_BE.shape
        queries_BE = queries_BE.reshape(B, E // _BITS, _BITS).swapaxes(1, 2).reshape(B, E)
    vectors_RE = stored_RS.astype(np.float32)
    return jnp.einsum("be,re->br", queries_BE, vectors_RE, precision=jax.lax.Precision.HIGHEST)


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """What the vectors of a name are.

    Attributes:
      precision: one of PRECISIONS.
      dim: E.
      truncated_from: the dimensions before they were cut to the first E; None where they were not.
      normalised: whether their length was 1 before they were coded.
      maker: a hash of what decides a vector besides its tokens, such as the model and the lengths; "" where unknown.
      ranges_2E: of int8, float32, the least and the greatest value of each dimension; None until they are known.
    """

    precision: str
    dim: int
    truncated_from: int | None = None
    normalised: bool = False
    maker: str = ""
    ranges_2E: np.ndarray | None = None

    def __post_init__(self):
        """Raises `UserError` where the dimensions do not fill whole bytes."""
        if self.precision == BINARY and self.dim % _BITS:
            raise UserError(f"precision binary: {self.dim} dimensions are no multiple of {_BITS}: set encode.truncate")

    @property
    def needs_ranges(self) -> bool:
        """Whether the ranges of dimensions are to be found before anything is coded."""
        return self.precision == INT8 and self.ranges_2E is None

    @property
    def width(self) -> int:
        """Stored numbers of a vector, S."""
        return self.dim // _BITS if self.precision == BINARY else self.dim

    @property
    def stored_type(self) -> np.dtype:
        """The type of what files hold."""
        return np.dtype(_TYPES[self.precision])

    @property
    def described(self) -> dict[str, Any]:
        """What its JSON says."""
        return {name: getattr(self, name) for name in (*_OF_MODEL, "maker")}

    def is_like(self, other: "Form | None") -> bool:
        """Whether another form stores vectors as this one does, its ranges included."""
        if other is None or self.described != other.described:
            return False
        return self.precision != INT8 or np.array_equal(self._ranges, other._ranges)

    def calibrated(self, ranges_2E: np.ndarray) -> "Form":
        """The same with these ranges."""
        return dataclasses.replace(self, ranges_2E=ranges_2E)

    def calibrated_on(self, rows_NE: Rows) -> "Form":
        """The same with the ranges of all rows, where it needs ranges: no value lies outside of them."""
        if not self.needs_ranges:
            return self
        of_blocks = np.stack([ranges_of(block_NE) for block_NE in blocks(rows_NE)])
        return self.calibrated(np.stack([of_blocks[:, 0].min(axis=0), of_blocks[:, 1].max(axis=0)]))

    def encode(self, vectors_NE: np.ndarray) -> np.ndarray:
        """Float32 vectors as they are stored [N, S]."""
        if self.precision == FLOAT32:
            return vectors_NE
        if self.precision == BFLOAT16:
            return vectors_NE.astype(ml_dtypes.bfloat16).view(np.uint16)
        if self.precision == BINARY:
            return np.packbits(vectors_NE > 0, axis=-1)
        codes_NE = np.floor((vectors_NE - self._ranges[0]) / self._step)
        return (np.clip(codes_NE, 0, _STEPS) - _SHIFT).astype(np.int8)

    def decode(self, stored_NS: np.ndarray) -> np.ndarray:
        """Float32 vectors [N, E]: the middle of what has this code; of bits 1 and -1."""
        if self.precision == BINARY:
            stored_NS = np.unpackbits(stored_NS, axis=1)
        numbers_NE = self.typed(stored_NS).astype(np.float32)
        if self.precision in (INT8, BINARY):
            scale_E, offset_E = self._scale_offset
            numbers_NE *= scale_E
            numbers_NE += offset_E
        return numbers_NE

    def typed(self, stored_NS: np.ndarray) -> np.ndarray:
        """What is stored, as `products` takes it: no file of NumPy's has bfloat16."""
        return stored_NS.view(ml_dtypes.bfloat16) if self.precision == BFLOAT16 else stored_NS

    def queries(self, queries_QE: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Queries as (q * scale) [Q, E] and q.offset [Q]: a score is the first's product with s, plus the second."""
        scale_E, offset_E = self._scale_offset
        return queries_QE * scale_E, queries_QE @ offset_E

    @property
    def _ranges(self) -> np.ndarray:
        assert self.ranges_2E is not None, "the ranges come before the codes"
        return self.ranges_2E

    @property
    def _step(self) -> np.ndarray:
        """The step [E] of each dimension; 1 where that has one value alone."""
        least_E, greatest_E = self._ranges
        step_E = (greatest_E - least_E) / np.float32(_STEPS)
        return np.where(step_E == 0, np.float32(1), step_E)

    @property
    def _scale_offset(self) -> tuple[np.ndarray, np.ndarray]:
        ones_E = np.ones(self.dim, np.float32)
        if self.precision == BINARY:
            return 2 * ones_E, -ones_E
        if self.precision in (FLOAT32, BFLOAT16):
            return ones_E, 0 * ones_E
        least_E, greatest_E = self._ranges
        # A dimension that has one value has one code, which stands for it, and not for the middle of a step.
        scale_E = np.where(greatest_E > least_E, self._step, np.float32(0))
        return scale_E, least_E + scale_E * np.float32(0.5 + _SHIFT)


class Codes:
    """Codes [N, S] of rows, as exact search takes them: those that are stored, or made when they are asked for."""

    def __init__(self, rows_NE: Any, form: Form):
        """Takes `Rows`; those that are stored in this very form have it as `form`, and codes as `stored(slice)`."""
        self._rows, self._form = rows_NE, form
        self._are_stored = getattr(rows_NE, "form", None) is form

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._rows), self._form.width

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._form.typed(self._rows.stored(rows) if self._are_stored else self._form.encode(self._rows[rows]))


def ranges_of(vectors_NE: np.ndarray) -> np.ndarray:
    """The least and the greatest value of each dimension, float32 [2, E]."""
    return np.stack([vectors_NE.min(axis=0), vectors_NE.max(axis=0)]).astype(np.float32)


def write(folder: Path, name: str, form: Form) -> None:
    """Writes the form of a name."""
    if form.ranges_2E is not None:
        files.write_array(_ranges_path(folder, name), form.ranges_2E)
    files.write_json(path(folder, name), form.described)
    sharded_map.seal(path(folder, name))


def read(folder: Path, name: str) -> Form | None:
    """The form of a name; None of vectors without one, which are float32."""
    if not path(folder, name).exists():
        return None
    form = Form(**files.read_json(sharded_map.verify(path(folder, name), _REMEDY)))
    if form.needs_ranges:
        ranges = sharded_map.verify(_ranges_path(folder, name), _REMEDY)
        form = form.calibrated(files.read_array(ranges, _REMEDY))
    return form


def check(folder: Path, name: str, wanted: Form) -> None:
    """Checks that the vectors of a name are what a model gives, as far as that is noted; ranges do not count.

    Compared with its queries others would give numbers that mean nothing.
    """
    there = read(folder, name)
    for field in _OF_MODEL if there else ():
        ours, theirs = getattr(wanted, field), getattr(there, field)
        if ours != theirs:
            why = f"embeddings with {field} {theirs}, and the model and config.encode have {ours}"
            raise UserError(f"{path(folder, name)}: {why}: --stage=encode,index makes them again")


def path(folder: Path, name: str) -> Path:
    """The file that says what the vectors of a name are."""
    return folder / f"{name}.json"


def _ranges_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.ranges.npy"
