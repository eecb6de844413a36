"""Vectors as a centroid's number and what is left, in 1, 2 or 4 bits a dimension (ColBERTv2, Santhanam et al. 2022).

What is left of a dimension is one of 2^bits values. They are those with the least squared error (Lloyd 1982), and not
the paper's quantiles: of a trained model's vectors more of the exact first ten are found. A vector is stored in 4 bytes
for the centroid, and E * bits / 8:

    buckets 3, 0, 2, 1 of 2 bits     lowest bit first: 1 1, 0 0, 0 1, 1 0     the byte 11000110 = 198

Letters of shapes: T vectors, E their size, P centroids, X bytes of a vector, Y values of a byte.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.search import kmeans

BITS = {"residual1": 1, "residual2": 2, "residual4": 4}
_ITERATIONS, _HELD_OUT, _MOST = 4, 0.05, 50_000
_EACH = 32  # vectors of a centroid that it is learned from: of 104, centroids are 0.01 nearer in cosine
_PIECE = 65_536  # vectors that are encoded at a time
_ROUNDS, _NUMBERS = 100, 60_000  # of k-means among what is left: iterations, and numbers of a value


class Codec(NamedTuple):
    """Attributes:
    centroids: float32 [P, E], of length 1.
    values: of the buckets, ascending, float32 [2^bits]. A number belongs to the one next to it.
    """

    centroids: np.ndarray
    values: np.ndarray

    @property
    def bits(self) -> int:
        """Bits per dimension of the residual."""
        return len(self.values).bit_length() - 1

    @property
    def bytes(self) -> int:
        """Bytes per stored vector."""
        return 4 + self.centroids.shape[1] * self.bits // 8

    @classmethod
    def learn(
        cls, vectors_TE: np.ndarray, total: int, bits: int, seed: Sequence[int], mesh: jax.sharding.Mesh
    ) -> "Codec":
        """Learns the codec from a sample of vectors of length 1.

        Args:
          total: how many vectors are to be stored: there are about 16 roots of that many centroids.
          bits: of a dimension, 1, 2 or 4.

        Raises:
          UserError: their size does not divide into bytes, or there is no vector.
        """
        if not len(vectors_TE) or vectors_TE.shape[1] * bits % 8:
            size = f"{len(vectors_TE)} vectors of {vectors_TE.shape[1]} dimensions are too few, or do not fill bytes"
            raise UserError(f"config.late.stored=residual{bits}: {size}: set config.late.stored=float16")
        order = np.random.default_rng(seed).permutation(len(vectors_TE))
        held_out, others = np.split(order, [min(_MOST, max(1, int(_HELD_OUT * len(order))))])
        held_out, others = vectors_TE[held_out], others if len(others) else held_out
        count = 2 ** int(math.log2(min(max(1.0, 16 * total**0.5), len(others))))
        some, rule = vectors_TE[others[: _EACH * count]], kmeans.Rule(count, _ITERATIONS)
        centroids = kmeans.learn_centroids(some, rule, seed, mesh)
        centroids = centroids / np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12)
        left = held_out - centroids[kmeans.nearest(held_out, centroids, mesh)]
        numbers = np.resize(left, (max(left.size, 1 << bits), 1))
        values = kmeans.learn_centroids(numbers, kmeans.Rule(1 << bits, _ROUNDS, _NUMBERS), seed, mesh)
        return cls(centroids.astype(np.float32), np.sort(values[:, 0]))

    def encode(self, vectors_TE: np.ndarray, mesh: jax.sharding.Mesh) -> np.ndarray:
        """Vectors as bytes, uint8 [T, X]; the work on some of them is in memory at a time."""
        parts, between = [np.zeros((0, self.bytes), np.uint8)], (self.values[1:] + self.values[:-1]) / 2
        for start in range(0, len(vectors_TE), _PIECE):
            some_TE = vectors_TE[start : start + _PIECE].astype(np.float32)
            code_T = kmeans.nearest(some_TE, self.centroids, mesh)
            bucket_TE = np.searchsorted(between, some_TE - self.centroids[code_T]).astype(np.uint8)
            codes = code_T.astype("<u4")[:, None].view(np.uint8)
            parts.append(np.concatenate([codes, packed(bucket_TE, self.bits)], axis=1))
        return np.concatenate(parts)

    def decode(self, stored_TX: np.ndarray) -> np.ndarray:
        """What `encode` has made of vectors, as vectors of length 1, float32 [T, E]."""
        bits_Yb = np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(256, -1, self.bits)
        of_byte_Y = self.values[(bits_Yb << np.arange(self.bits, dtype=np.uint8)).sum(axis=2)]
        code_T = np.ascontiguousarray(stored_TX[:, :4]).view("<u4")[:, 0]
        vectors_TE = np.take(self.centroids, code_T, axis=0)  # which is many times as fast as an index
        vectors_TE += np.take(of_byte_Y, stored_TX[:, 4:], axis=0).reshape(vectors_TE.shape)
        return vectors_TE / np.sqrt(np.maximum(np.einsum("te,te->t", vectors_TE, vectors_TE), 1e-24))[:, None]

    def save(self, path: Path) -> None:
        """Writes it, whole or not at all."""
        with files.atomic(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **self._asdict())

    @classmethod
    def load(cls, path: Path, remedy: str) -> "Codec":
        """Reads it.

        Raises:
          UserError: the file is none.
        """
        arrays = files.read_arrays(path, remedy)
        if arrays.keys() != set(cls._fields):
            raise UserError(f"{path}: not the centroids and values of vectors; {remedy}")
        return cls(**arrays)


def packed(bucket_TE: np.ndarray, bits: int) -> np.ndarray:
    """The numbers of buckets as bytes, [T, E * bits / 8]."""
    bits_TEb = (bucket_TE[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(bits_TEb.reshape(len(bucket_TE), -1), axis=1)
