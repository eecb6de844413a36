"""MUVERA (Dhulipala et al. 2024): one vector for all tokens of a text, whose inner products estimate MaxSim.

Random planes cut the space into parts. A query's vector has, part by part, the sum of its tokens' vectors there; a
document's has their mean, and in a part without a token the vector of the token that is nearest by its side of the
planes. So a query's token meets a document's that is near. Several such cuts stand side by side.

Letters of shapes: T tokens of a text, E size of a vector, b planes, P parts (2^b), D size of a part's vector.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_SIZE = re.compile(r"[1-9]\d{0,3}x(\d|1\d)x[1-9]\d{0,4}")


class Cut(NamedTuple):
    """Attributes:
    planes: [E, b].
    projection: of a part's vector, [E, D]: each dimension goes to one of D, with a sign; or keeps its own.
    """

    planes: np.ndarray
    projection: np.ndarray


class Muvera:
    """Fixed-dimensional encodings of some sizes; the same seed gives the same ones.

    Attributes:
      size: of a text's vector.
    """

    def __init__(self, dimensions: int, repetitions: int, planes: int, size: int, seed: int = 0):
        """Args:
        dimensions: E, of the tokens' vectors.
        repetitions: cuts that stand side by side.
        planes: of a cut, which has 2^planes parts.
        size: of a part's vector; E or more for the tokens' own dimensions.
        """
        self.cuts, self.size = [], repetitions * (min(size, dimensions) << planes)
        for repetition in range(repetitions):
            rng = np.random.default_rng([seed, repetition])
            normals = rng.normal(size=(dimensions, planes)).astype(np.float32)
            projection = np.eye(dimensions, dtype=np.float32)
            if size < dimensions:
                places, signs = rng.integers(0, size, dimensions), rng.choice([-1.0, 1.0], dimensions)
                projection = np.eye(size, dtype=np.float32)[places] * signs.astype(np.float32)[:, None]
            self.cuts.append(Cut(normals, projection))

    def query(self, vectors_TE: np.ndarray) -> np.ndarray:
        """A query's vector, float32 [size]; zeros without a token."""
        return self._joined(vectors_TE, lambda vectors_TE, planes: _sums(vectors_TE, planes)[0])

    def document(self, vectors_TE: np.ndarray) -> np.ndarray:
        """A document's vector, float32 [size]; zeros without a token."""
        return self._joined(vectors_TE, _means) if len(vectors_TE) else np.zeros(self.size, np.float32)

    def _joined(self, vectors_TE: np.ndarray, of_parts: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """The vectors [P, E] of each cut's parts, projected, one after the other."""
        vectors_TE = vectors_TE.astype(np.float32)
        parts = [of_parts(vectors_TE, cut.planes) @ cut.projection for cut in self.cuts]
        return np.concatenate([part_PD.reshape(-1) for part_PD in parts])


def are_sizes(value: Any) -> bool:
    """Whether a value of `config.late.fde` is a tuple of sizes."""
    return isinstance(value, tuple | list) and all(isinstance(text, str) and _SIZE.fullmatch(text) for text in value)


def parts(vectors_TE: np.ndarray, planes_Eb: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of each token's part, [T], and on which side of the planes it is, bool [T, b].

    Numbers are those of Gray's code: neighbours differ by one plane.
    """
    side_Tb = vectors_TE @ planes_Eb > 0
    code_T = np.zeros(len(vectors_TE), np.int64)
    for side_T in side_Tb.T:
        code_T = (code_T << 1) + (side_T ^ (code_T & 1))
    return code_T, side_Tb


def _sums(vectors_TE: np.ndarray, planes_Eb: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sums of each part's tokens, [P, E], how many these are, [P], and the tokens' sides, [T, b]."""
    code_T, side_Tb = parts(vectors_TE, planes_Eb)
    member_PT = np.arange(1 << planes_Eb.shape[1])[:, None] == code_T
    return member_PT.astype(np.float32) @ vectors_TE, member_PT.sum(axis=1), side_Tb


def _means(vectors_TE: np.ndarray, planes_Eb: np.ndarray) -> np.ndarray:
    """The means of each part's tokens, [P, E]; where there is none, the first of the nearest tokens."""
    sum_PE, count_P, side_Tb = _sums(vectors_TE, planes_Eb)
    mean_PE = sum_PE / np.maximum(count_P, 1)[:, None]
    empty = np.flatnonzero(count_P == 0)
    gray = empty ^ (empty >> 1)
    side_Xb = (gray[:, None] >> np.arange(side_Tb.shape[1])[::-1]) & 1
    nearest_X = (side_Xb[:, None] != side_Tb[None]).sum(axis=2).argmin(axis=1)
    mean_PE[empty] = vectors_TE[nearest_X]
    return mean_PE
