"""Vectors in fewer bytes: how they are stored, what that stands for, and inner products with it.

NAME.json          {precision, dim, truncated_from, normalised, symmetric}: the `Form` of the vectors of a name
NAME.ranges.npy    float32 [2, E], the least and the greatest value of each dimension, where codes have such ranges
NAME.sums.json     the sums of these two, as `sharded_map` has them

| precision | stored | bytes |
|---|---|---|
| float32 | as it is | 4 E |
| bfloat16 | its bits, as uint16 | 2 E |
| int8 | a code from 0 to 255, less 128; of a symmetric range r one from -127 to 127 | E |
| int4 | two codes a byte, the first in its high half: 0 to 15; of a symmetric range r -7 to 7, plus 8 | E / 2 |
| binary | a bit, whether the value is above 0, eight a byte, the first in its highest bit (`np.packbits`) | E / 8 |

With ranges a code is floor((x - min) / step), the step of int8 being (max - min) / 255 as in sentence-transformers 6,
and that of int4 (max - min) / 15. With a symmetric range it is round(x Q / r), Q being 127 or 7 (Arctic-Embed 1.5).
Values outside take the last code, and are counted.

What is stored is s, and x is about offset + scale * s, with numbers for each dimension. So q.x is about
(q * scale).s + q.offset. The naive q.s forgets that scales differ, and can turn the order round.

Shape letters: N vectors, E dimensions, S stored numbers of a vector, P parts of a number, Q queries; B queries and R
vectors of a product.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.search import sharded_map

FLOAT32, BFLOAT16, INT8, INT4, BINARY = PRECISIONS = ("float32", "bfloat16", "int8", "int4", "binary")
_TYPES = {FLOAT32: np.float32, BFLOAT16: np.uint16, INT8: np.int8, INT4: np.uint8, BINARY: np.uint8}
_PER_NUMBER = {INT4: 2, BINARY: 8}  # dimensions in a stored number
_STEPS = {INT8: 255, INT4: 15}  # between the least and the greatest value
_HALF = {INT8: 127, INT4: 7}  # codes on each side of 0, of a symmetric range
_SHIFT = {INT8: 0, INT4: 8}  # what is added to these
_DESCRIBED = ("precision", "dim", "truncated_from", "normalised", "symmetric")
_REMEDY = "--stage=encode makes it again"


@dataclasses.dataclass(frozen=True)
class Packing:
    """Where the number of a dimension is in what is stored. Two of equal fields are equal, as JAX needs it.

    Attributes:
      bits: whether queries are stored as vectors are, as bits.
    """

    precision: str
    dim: int
    bits: bool = False

    def unpack(self, stored_NS: np.ndarray) -> np.ndarray:
        """The numbers s [N, E], float32."""
        return _interleaved(self._numbers(stored_NS), _PER_NUMBER.get(self.precision, 1))

    def products(self, queries_BX: jax.Array, stored_RS: jax.Array) -> jax.Array:
        """The products [B, R] of what `Form.queries` made of queries, and what is stored."""
        if not self.bits:
            # On a CPU it takes one query half as long where queries are brought into the order of the parts.
            ordered_BE = _interleaved(queries_BX, self.dim // _PER_NUMBER.get(self.precision, 1))
            return inner_products(ordered_BE, self._numbers(stored_RS))
        differing_BR = jnp.zeros((len(queries_BX), len(stored_RS)), jnp.int32)
        for query_B, stored_R in zip(_words(queries_BX).T, _words(stored_RS).T):  # [B, R, S] would be the most memory
            differing_BR += jax.lax.population_count(query_B[:, None] ^ stored_R).astype(jnp.int32)
        return (self.dim - 2 * differing_BR).astype(jnp.float32)

    def _numbers(self, stored_NS: Any) -> Any:
        """The first parts of all stored numbers, then the second ones and so on, float32; of NumPy or JAX."""
        if (per := _PER_NUMBER.get(self.precision, 1)) == 1:
            return stored_NS.astype(np.float32)
        bits, xp = 8 // per, stored_NS.__array_namespace__()
        shifts = [np.uint8(8 - bits * part) for part in range(1, per + 1)]
        parts = [(stored_NS >> shift) & np.uint8((1 << bits) - 1) for shift in shifts]
        return xp.concatenate(parts, axis=1).astype(np.float32)


def _interleaved(values_NE: Any, groups: int) -> Any:
    """The first values of all of so many equal groups of columns, then the second ones and so on."""
    rows, columns = values_NE.shape
    return values_NE.reshape(rows, groups, columns // groups).swapaxes(1, 2).reshape(rows, columns)


def inner_products(queries_BE: jax.Array, vectors_RE: jax.Array) -> jax.Array:
    """Inner products [B, R] in float32."""
    return jnp.einsum("be,re->br", queries_BE, vectors_RE, precision=jax.lax.Precision.HIGHEST)


def _words(bytes_NS: jax.Array) -> jax.Array:
    """Bytes as words of four where they make such: fewer turns of a loop."""
    if bytes_NS.shape[1] % 4:
        return bytes_NS
    return jax.lax.bitcast_convert_type(bytes_NS.reshape(len(bytes_NS), -1, 4), jnp.uint32)


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """What the vectors of a name are.

    Attributes:
      precision: one of PRECISIONS.
      dim: E.
      truncated_from: the dimensions before they were cut to the first E; None where they were not.
      normalised: whether their length was 1 before they were coded.
      symmetric: the range r of all dimensions; None where each has a range of its own, or the precision has none.
      ranges_2E: float32, the least and the greatest value of each dimension; None where there are none.
    """

    precision: str
    dim: int
    truncated_from: int | None = None
    normalised: bool = False
    symmetric: float | None = None
    ranges_2E: np.ndarray | None = None

    def __post_init__(self):
        """Raises `UserError` where the dimensions do not fill whole bytes."""
        if self.dim % (per := _PER_NUMBER.get(self.precision, 1)):
            raise UserError(
                f"precision {self.precision} has {per} dimensions a byte, and embeddings have {self.dim}: cut them to "
                f"a multiple of {per} with config.encode.truncate, or take int8"
            )

    def packing(self, bits: bool = False) -> Packing:
        """Where the number of a dimension is; with `bits` for queries that are bits too."""
        assert not bits or self.precision == BINARY, "only bits are compared with bits"
        return Packing(self.precision, self.dim, bits)

    @property
    def needs_ranges(self) -> bool:
        """Whether the ranges of dimensions are to be found before anything is coded."""
        return self.precision in _STEPS and self.symmetric is None and self.ranges_2E is None

    @property
    def has_range(self) -> bool:
        """Whether a value can lie outside of what codes stand for."""
        return self.precision in _STEPS

    @property
    def width(self) -> int:
        """Stored numbers of a vector, S."""
        return self.dim // _PER_NUMBER.get(self.precision, 1)

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector."""
        return self.width * self.stored_type.itemsize

    @property
    def stored_type(self) -> np.dtype:
        """The type of what files hold."""
        return np.dtype(_TYPES[self.precision])

    @property
    def described(self) -> dict[str, Any]:
        """What its JSON says."""
        return {name: getattr(self, name) for name in _DESCRIBED}

    def calibrated(self, ranges_2E: np.ndarray) -> "Form":
        """The same with these ranges."""
        return dataclasses.replace(self, ranges_2E=ranges_2E)

    def encode(self, vectors_NE: np.ndarray) -> tuple[np.ndarray, int]:
        """Float32 vectors as they are stored [N, S], and how many of their values lie outside of the ranges."""
        if self.precision == FLOAT32:
            return vectors_NE, 0
        if self.precision == BFLOAT16:
            return vectors_NE.astype(ml_dtypes.bfloat16).view(np.uint16), 0
        if self.precision == BINARY:
            return np.packbits(vectors_NE > 0, axis=-1), 0
        if self.symmetric is not None:
            half = _HALF[self.precision]
            codes_NE = np.clip(np.rint(vectors_NE * np.float32(half / self.symmetric)), -half, half)
            codes_NE += _SHIFT[self.precision]
            outside = np.abs(vectors_NE) > self.symmetric
        else:
            least_E, greatest_E = self._ranges
            codes_NE = np.clip(np.floor((vectors_NE - least_E) / self._step()), 0, _STEPS[self.precision])
            codes_NE -= 128 if self.precision == INT8 else 0
            outside = (vectors_NE < least_E) | (vectors_NE > greatest_E)
        stored_NE = codes_NE.astype(_TYPES[self.precision])
        if self.precision == INT4:
            stored_NE = stored_NE[:, 0::2] << 4 | stored_NE[:, 1::2]
        return stored_NE, int(outside.sum())

    def decode(self, stored_NS: np.ndarray) -> np.ndarray:
        """Float32 vectors [N, E]: the middle of what has this code; of bits 1 and -1."""
        scale_E, offset_E = self._scale_offset
        numbers_NE = self.packing().unpack(self.typed(stored_NS))
        if self.precision in (FLOAT32, BFLOAT16):
            return numbers_NE
        numbers_NE *= scale_E
        numbers_NE += offset_E
        return numbers_NE

    def typed(self, stored_NS: np.ndarray) -> np.ndarray:
        """What is stored, as `Packing.unpack` takes it: no file of NumPy's has bfloat16."""
        return stored_NS.view(ml_dtypes.bfloat16) if self.precision == BFLOAT16 else stored_NS

    def queries(self, queries_QE: np.ndarray, bits: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Queries as (q * scale) [Q, E] and q.offset [Q]: a score is the product of the first with s, plus the second.

        With `bits` the first are the bits of queries [Q, S].
        """
        if bits:
            return self.encode(queries_QE)[0], np.zeros(len(queries_QE), np.float32)
        scale_E, offset_E = self._scale_offset
        return queries_QE * scale_E, queries_QE @ offset_E

    @property
    def _ranges(self) -> np.ndarray:
        assert self.ranges_2E is not None, "the ranges come before the codes"
        return self.ranges_2E

    def _step(self) -> np.ndarray:
        """The step [E] of each dimension; 1 where that has one value alone."""
        least_E, greatest_E = self._ranges
        step_E = (greatest_E - least_E) / np.float32(_STEPS[self.precision])
        return np.where(step_E == 0, np.float32(1), step_E)

    @property
    def _scale_offset(self) -> tuple[np.ndarray, np.ndarray]:
        ones_E = np.ones(self.dim, np.float32)
        if self.precision == BINARY:
            return 2 * ones_E, -ones_E
        if self.precision in (FLOAT32, BFLOAT16):
            return ones_E, 0 * ones_E
        if self.symmetric is not None:
            scale_E = ones_E * np.float32(self.symmetric / _HALF[self.precision])
            return scale_E, -_SHIFT[self.precision] * scale_E
        least_E, greatest_E = self._ranges
        # A dimension that has one value has one code, which stands for it, and not for the middle of a step.
        scale_E = np.where(greatest_E > least_E, self._step(), np.float32(0))
        return scale_E, least_E + scale_E * np.float32(0.5 + (128 if self.precision == INT8 else 0))


def ranges_of(vectors_NE: np.ndarray) -> np.ndarray:
    """The least and the greatest value of each dimension, float32 [2, E]."""
    return np.stack([vectors_NE.min(axis=0), vectors_NE.max(axis=0)]).astype(np.float32)


def write(folder: Path, name: str, form: Form) -> None:
    """Writes the form of a name."""
    if form.ranges_2E is not None:
        with files.atomic(_ranges_path(folder, name)) as temporary, temporary.open("wb") as file:
            np.save(file, form.ranges_2E, allow_pickle=False)
    files.write_json(path(folder, name), form.described)
    sharded_map.seal(path(folder, name))


def read(folder: Path, name: str) -> Form | None:
    """The form of a name; None of vectors without one, which are float32.

    Raises:
      UserError: its files are damaged.
    """
    if not path(folder, name).exists():
        return None
    form = Form(**files.read_json(sharded_map.verify(path(folder, name), _REMEDY)))
    if form.needs_ranges:
        ranges = sharded_map.verify(_ranges_path(folder, name), _REMEDY)
        form = form.calibrated(files.read_array(ranges, _REMEDY))
    return form


def check(folder: Path, name: str, wanted: Form) -> None:
    """Checks that the vectors of a name are what a model gives, as far as that is noted.

    Args:
      wanted: what it gives; its ranges do not count.

    Raises:
      UserError: they are not; compared with its queries they would give numbers that mean nothing.
    """
    if (there := read(folder, name)) is None:
        return
    for field in _DESCRIBED:
        ours, theirs = getattr(wanted, field), getattr(there, field)
        if ours != theirs:
            raise UserError(
                f"{path(folder, name)}: embeddings with {field} {theirs}, and the model and config.encode have {ours}: "
                "--stage=encode,index makes them again"
            )


def path(folder: Path, name: str) -> Path:
    """The file that says what the vectors of a name are."""
    return folder / f"{name}.json"


def _ranges_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.ranges.npy"
