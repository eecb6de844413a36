"""What a collection of passages takes beside training: towers that encode it, k-means, and exact search.

Operations alone, so every time made of them is a bound from below. Letters: N passages, E dimensions, K clusters.
"""

from typing import NamedTuple

from retrieval.training.chips import Chip

# A product of float32 at the highest precision is six of bfloat16 on a TPU.
_PRODUCTS = 6


class Task(NamedTuple):
    """One thing to do with a collection.

    Attributes:
      name: in words.
      flops: operations of all chips together.
      bytes: that all chips together read, beside the model; of a query, with it.
    """

    name: str
    flops: float
    bytes: float

    def seconds(self, chip: Chip, chips: int) -> float:
        """The least time that so many chips take."""
        return max(self.flops / chip.peak_flops, self.bytes / chip.bandwidth) / chips


def shown(N: int, windows: int) -> str:
    """Passages, each with as many windows as it may have, in words."""
    return f"{N * windows:,} windows (the most) of {N:,} passages" if windows > 1 else f"{N:,} passages"


def encode(N: int, flops: float, E: int, windows: int = 1) -> Task:
    """Every window of every passage through a tower, which takes so many operations for one."""
    return Task(f"to encode {shown(N, windows)}", N * windows * flops, 4.0 * N * windows * E)


def query(flops: float, bytes: float) -> Task:
    """A query alone through its tower, whose products take so many operations, and read and write so many bytes."""
    return Task("a query through its tower", flops, bytes)


def k_means(N: int, E: int, K: int, iterations: int, sample: int) -> Task:
    """k-means, each iteration over at most `sample` points a cluster (0: all), and at the end once over all.

    An iteration has two products of N x E x K: the distances, and the sums of the points of each cluster.
    """
    points = min(N, sample * K) if sample else N
    passes = 2 * iterations * points + N
    return Task(
        f"k-means of {N:,} x {E} in {K:,} clusters, {iterations} iterations",
        _PRODUCTS * 2.0 * passes * E * K,
        4.0 * E * (iterations * points + N),
    )


def search(N: int, E: int) -> Task:
    """Exact search for a query alone, which reads every embedding."""
    return Task(f"a query of exact search over {N:,} x {E}", 2.0 * N * E, 4.0 * N * E)
