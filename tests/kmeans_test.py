"""k-means against Lloyd's algorithm in numpy, on one device and on eight."""

import jax
import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.search import kmeans
from retrieval.search.kmeans import Rule, cluster
from retrieval.training import sharding


def blobs(N=300, E=6, centres=7, seed=0):
    random = np.random.default_rng(seed)
    centre_CE = random.normal(size=(centres, E)) * 4
    return (centre_CE[random.integers(centres, size=N)] + random.normal(size=(N, E))).astype(np.float32)


def mesh_of(devices):
    return sharding.make_mesh(devices=jax.devices()[:devices])


def by_numpy(points_NE, centroid_KE, iterations):
    """The same in float64, one cluster at a time."""
    points_NE = points_NE.astype(np.float64)
    for _ in range(iterations + 1):
        distance_NK = np.square(points_NE[:, None] - centroid_KE).sum(axis=2)
        nearest_N = distance_NK.argmin(axis=1)
        last_KE = centroid_KE
        centroid_KE = np.stack(
            [points_NE[nearest_N == k].mean(axis=0) if (nearest_N == k).any() else own for k, own in enumerate(last_KE)]
        )
    return nearest_N, last_KE


@pytest.mark.parametrize("on_cpu", [False, True])
def test_clusters_are_those_of_lloyds_algorithm(on_cpu, monkeypatch):
    monkeypatch.setattr(kmeans, "is_on_cpu", lambda: on_cpu)
    kmeans._improved.clear_cache()
    points, rule = blobs(), Rule(7, iterations=6)
    start = cluster(points, rule._replace(iterations=0), [3], mesh_of(1))[1]
    assert {row.tobytes() for row in start} <= {row.tobytes() for row in points}
    found_N, found_KE = cluster(points, rule, [3], mesh_of(1))
    nearest_N, centroid_KE = by_numpy(points, start.astype(np.float64), 6)
    np.testing.assert_array_equal(found_N, nearest_N)
    np.testing.assert_allclose(found_KE, centroid_KE, atol=1e-5)


def test_eight_devices_find_the_same_bits_as_one():
    rule = Rule(11, iterations=9, sample=20)
    one, eight = (cluster(blobs(), rule, [5], mesh_of(devices)) for devices in (1, 8))
    for of_one, of_eight in zip(one, eight):
        np.testing.assert_array_equal(of_one, of_eight)
    assert not np.array_equal(cluster(blobs(), rule, [6], mesh_of(1))[1], one[1])


def test_fewer_points_than_clusters_are_refused():
    with pytest.raises(UserError, match="5 points cannot be in 6 clusters"):
        cluster(blobs(5), Rule(6), [0], mesh_of(1))
