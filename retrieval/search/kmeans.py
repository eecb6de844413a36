"""k-means on every device of a mesh: the same clusters, to the bit, on any number of devices that divides 64.

Points lie in 64 parts (on other numbers of devices in more), each on one device. A part is a sequence of tiles, whose
shape depends on the number of points alone: the last bits of a product depend on its shape. What the parts add up to is
gathered and added in their order.

Shape letters: N points, E their dimensions, K clusters, P parts, T tiles of a part, R rows of a tile.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from retrieval.common.errors import UserError
from retrieval.common.runtime import devices
from retrieval.common.runtime.arrays import first_highest, is_on_cpu
from retrieval.search.exact import finite_embeddings
from retrieval.search.text_batches import few

_PARTS, _ROWS = 64, 1024
_HIGHEST = jax.lax.Precision.HIGHEST


class Rule(NamedTuple):
    """How points are clustered.

    Attributes:
      clusters: how many.
      iterations: at most; fewer where no point changes its cluster any more.
      sample: points of a cluster at most that centroids are made of, drawn by the seed; 0 for all. Every point gets a
        cluster.
    """

    clusters: int
    iterations: int = 25
    sample: int = 0


class _Points(NamedTuple):
    """Points [P, T, R, E], and 1 for a point and 0 for padding, [P, T, R]."""

    place: jax.Array
    weight: jax.Array


def cluster(points_NE: np.ndarray, rule: Rule, seed: Sequence[int], mesh: jax.sharding.Mesh) -> tuple[np.ndarray, ...]:
    """The cluster of each point, as `nearest`, and `learn_centroids`; every process has, and gets, all."""
    centroid_KE = learn_centroids(points_NE, rule, seed, mesh)
    return nearest(points_NE, centroid_KE, mesh), centroid_KE


def learn_centroids(points_NE: np.ndarray, rule: Rule, seed: Sequence[int], mesh: jax.sharding.Mesh) -> np.ndarray:
    """Centroids [K, E] by Lloyd's algorithm (1982), from points drawn by chance; that of an empty cluster stays."""
    points_NE = finite_embeddings(points_NE, "point")
    if len(points_NE) < rule.clusters:
        raise UserError(f"{len(points_NE)} points cannot be in {rule.clusters} clusters: ask for fewer clusters")
    random = np.random.default_rng(seed)
    if 0 < (most := rule.sample * rule.clusters) < len(points_NE):
        points_NE = points_NE[np.sort(random.choice(len(points_NE), most, replace=False))]
    with jax.set_mesh(mesh):
        points = _placed(points_NE, mesh)
        centroid_KE = jnp.asarray(points_NE[random.choice(len(points_NE), rule.clusters, replace=False)])
        for _ in range(rule.iterations):
            last_KE, centroid_KE = centroid_KE, _improved(points, centroid_KE)
            if (centroid_KE == last_KE).all():
                break
    return np.asarray(centroid_KE)


def nearest(points_NE: np.ndarray, centroid_KE: np.ndarray | jax.Array, mesh: jax.sharding.Mesh) -> np.ndarray:
    """The cluster of each point, int32 [N]: the one whose centroid is next to it, of equals the first."""
    with jax.set_mesh(mesh), devices.alone():
        cluster_PTR = np.asarray(_assigned(_placed(points_NE, mesh), jnp.asarray(centroid_KE)))
    return cluster_PTR.reshape(-1)[: len(points_NE)]


def _placed(points_NE: np.ndarray, mesh: jax.sharding.Mesh) -> _Points:
    """The points and their padding, the parts over all axes of the mesh."""
    parts = math.lcm(_PARTS, mesh.size)
    rows = min(_ROWS, few(-(-len(points_NE) // parts)))
    tiles = -(-len(points_NE) // (parts * rows))
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def place(values: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(parts)
            own = values[start * tiles * rows : stop * tiles * rows]
            missing = (stop - start) * tiles * rows - len(own)
            padded = np.pad(own, [(0, missing)] + [(0, 0)] * (own.ndim - 1))
            return padded.reshape(stop - start, tiles, rows, *values.shape[1:])

        return jax.make_array_from_callback((parts, tiles, rows, *values.shape[1:]), sharding, part)

    return _Points(place(np.asarray(points_NE, np.float32)), place(np.ones(len(points_NE), np.float32)))


def _on_parts(function: Callable, points: _Points, *whole: Any) -> Any:
    """`function(part, *whole)` of every part, on the device that has it; the results are on every device, in order."""
    axes = jax.sharding.get_abstract_mesh().axis_names

    def on_device(points: _Points, *whole: Any) -> Any:
        return jax.lax.map(lambda part: function(part, *whole), points)

    specs = (PartitionSpec(axes), *(PartitionSpec() for _ in whole))
    mapped = jax.shard_map(on_device, in_specs=specs, out_specs=PartitionSpec(axes), check_vma=False)
    return jax.reshard(mapped(points, *whole), PartitionSpec())


def _nearest(tile_RE: jax.Array, centroid_KE: jax.Array) -> jax.Array:
    """The number of the centroid next to each row, of equals the first."""
    product_RK = jnp.einsum("re,ke->rk", tile_RE, centroid_KE, precision=_HIGHEST)
    return first_highest(product_RK - jnp.square(centroid_KE).sum(axis=1) / 2)


@jax.jit
def _assigned(points: _Points, centroid_KE: jax.Array) -> jax.Array:
    """The clusters of all points, [P, T, R], on every device."""

    def of_part(part: _Points, centroid_KE: jax.Array) -> jax.Array:
        return jax.lax.map(lambda tile_RE: _nearest(tile_RE, centroid_KE), part.place)

    return _on_parts(of_part, points, centroid_KE)


@jax.jit
def _improved(points: _Points, centroid_KE: jax.Array) -> jax.Array:
    """The means of the points next to each centroid."""

    def of_part(part: _Points, centroid_KE: jax.Array) -> Any:
        def add(sums: Any, tile: _Points) -> Any:
            sum_KE, count_K = sums
            nearest_R = _nearest(tile.place, centroid_KE)
            if is_on_cpu():  # in half of the time; on GPUs a scatter adds in an order that changes
                return (sum_KE.at[nearest_R].add(tile.place), count_K.at[nearest_R].add(tile.weight)), None
            is_in_RK = (nearest_R[:, None] == jnp.arange(len(centroid_KE))) * tile.weight[:, None]
            sum_KE += jnp.einsum("rk,re->ke", is_in_RK, tile.place, precision=_HIGHEST)
            return (sum_KE, count_K + is_in_RK.sum(axis=0)), None

        zeros = jnp.zeros_like(centroid_KE), jnp.zeros(len(centroid_KE))
        return jax.lax.scan(add, zeros, part)[0]

    def in_order(values: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda total, own: (total + own, None), jnp.zeros_like(values[0]), values)[0]

    sum_KE, count_K = jax.tree.map(in_order, _on_parts(of_part, points, centroid_KE))
    return jnp.where(count_K[:, None] > 0, sum_KE / jnp.maximum(count_K, 1)[:, None], centroid_KE)
