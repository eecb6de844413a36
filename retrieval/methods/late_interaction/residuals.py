"""Vectors as a centroid's number and what is left, in 1, 2 or 4 bits a dimension (ColBERTv2, Santhanam et al. 2022).

What is left of a dimension is one of 2^bits numbers. A vector is stored in 4 bytes for the centroid, and E * bits / 8:

    buckets 3, 0, 2, 1 of 2 bits     lowest bit first: 1 1, 0 0, 0 1, 1 0     the byte 11000110 = 198

Letters of shapes: T vectors, E their size, P centroids, X bytes of a vector.
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


class Codec(NamedTuple):
    """Attributes:
    centroids: float32 [P, E], of length 1.
    cutoffs: between the buckets, ascending, float32 [2^bits - 1].
    values: of the buckets, float32 [2^bits].
    """

    centroids: np.ndarray
    cutoffs: np.ndarray
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
        held_out, others = np.split(vectors_TE[order], [min(_MOST, max(1, int(_HELD_OUT * len(order))))])
        others = others if len(others) else held_out
        count = 2 ** int(math.log2(min(max(1.0, 16 * total**0.5), len(others))))
        centroids = kmeans.cluster(others, kmeans.Rule(count, _ITERATIONS), seed, mesh).centroid_KE
        centroids = centroids / np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12)
        left = held_out - centroids[nearest(held_out, centroids)]
        shares = np.arange(1 << bits) / (1 << bits)
        cutoffs, values = (np.quantile(left, at).astype(np.float32) for at in (shares[1:], shares + 0.5 / (1 << bits)))
        return cls(centroids.astype(np.float32), cutoffs, values)

    def encode(self, vectors_TE: np.ndarray) -> np.ndarray:
        """Vectors as bytes, uint8 [T, X]."""
        vectors_TE = vectors_TE.astype(np.float32)
        code_T = nearest(vectors_TE, self.centroids)
        bucket_TE = np.searchsorted(self.cutoffs, vectors_TE - self.centroids[code_T]).astype(np.uint8)
        code_T4 = code_T.astype("<u4").view(np.uint8).reshape(-1, 4)
        return np.concatenate([code_T4, packed(bucket_TE, self.bits)], axis=1)

    def decode(self, stored_TX: np.ndarray) -> np.ndarray:
        """What `encode` has made of vectors, as vectors of length 1, float32 [T, E]."""
        code_T = np.ascontiguousarray(stored_TX[:, :4]).view("<u4")[:, 0]
        bits_Yb = np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(256, -1, self.bits)
        of_byte_Y = self.values[(bits_Yb << np.arange(self.bits, dtype=np.uint8)).sum(axis=2)]
        vectors_TE = self.centroids[code_T] + of_byte_Y[stored_TX[:, 4:]].reshape(len(code_T), -1)
        return vectors_TE / np.maximum(np.linalg.norm(vectors_TE, axis=1, keepdims=True), 1e-12)

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
            raise UserError(f"{path}: not the centroids and buckets of vectors; {remedy}")
        return cls(**arrays)


def packed(bucket_TE: np.ndarray, bits: int) -> np.ndarray:
    """The numbers of buckets as bytes, [T, E * bits / 8]."""
    bits_TEb = (bucket_TE[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(bits_TEb.reshape(len(bucket_TE), -1), axis=1)


def nearest(vectors_TE: np.ndarray, centroids_PE: np.ndarray) -> np.ndarray:
    """The centroid of each vector with the greatest inner product, [T]; some vectors at a time."""
    parts = (vectors_TE[start : start + 4096] @ centroids_PE.T for start in range(0, len(vectors_TE), 4096))
    return np.concatenate([np.zeros(0, np.int64), *(scores.argmax(axis=1) for scores in parts)])
