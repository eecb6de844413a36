"""Search by MaxSim: the lists of centroids, vectors of few bytes, and their files."""

import functools

import numpy as np
import pytest
from ml_collections import ConfigDict
from support.tiny import make_config

from retrieval.common.errors import UserError
from retrieval.methods.late_interaction import residuals, token_store
from retrieval.methods.late_interaction.maxsim_search import best, of_candidates, ranked
from retrieval.methods.late_interaction.maxsim_stage import check_settings
from retrieval.methods.late_interaction.plaid import CentroidLists
from retrieval.methods.late_interaction.residuals import Codec, packed
from retrieval.methods.late_interaction.token_encoder import Queries
from retrieval.methods.late_interaction.token_store import TokenStore
from retrieval.recipes.parameters import local_mesh
from retrieval.search import sharded_map
from retrieval.search.sharded_map import Shards


def unit(rng, *shape):
    x = rng.normal(size=shape).astype(np.float32)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_centroids_find_what_is_near_them():
    """Four centroids, on the axes. Document 0 has tokens at two of them, 2 has none."""
    centroids = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.float32)
    lists = CentroidLists(np.array([0, 1, 0, 2, 3, 1]), np.array([3, 2, 0, 1]), centroids)
    assert lists.bytes == 4 * (5 + 5 + 6)
    query = np.array([[0.8, 0.6], [0.6, 0.8]], np.float32)
    assert lists.candidates(query, 1, 3).tolist() == [0, 3]
    assert lists.candidates(query, 9, 4).tolist() == [0, 3, 1]
    assert lists.candidates(-query, 1, 1).tolist() == [1]
    assert lists.candidates(query[:0], 1, 2).tolist() == []


def estimates(query, codes, centroids, probes):
    """A loop over the tokens of a query, the documents and their tokens."""
    found = {}
    for scores in query @ centroids.T:
        nearest = sorted(range(len(centroids)), key=lambda p: -scores[p])[:probes]
        for number, of_document in enumerate(codes):
            met = [scores[p] for p in nearest if p in of_document]
            found.setdefault(number, []).append((max(met) if met else scores[nearest[-1]], bool(met)))
    return {number: sum(x for x, _ in each) for number, each in found.items() if any(is_met for _, is_met in each)}


def test_candidates_are_those_of_loops():
    """Of the documents with the best estimates, 4 for each result, those with the best centroids."""
    rng = np.random.default_rng(0)
    centroids, codes = unit(rng, 32, 8), [rng.integers(0, 32, size) for size in rng.integers(0, 9, 40)]
    lists = CentroidLists(np.concatenate(codes), np.array(list(map(len, codes))), centroids)
    for probes, depth in [(1, 2), (1, 20), (3, 5), (40, 2), (40, 20)]:
        query = unit(rng, 5, 8)
        expected = estimates(query, codes, centroids, probes)
        first = sorted(expected, key=lambda number: -expected[number])[: 4 * depth]
        by_centroids = {number: (query @ centroids[codes[number]].T).max(axis=1).sum() for number in first}
        best = sorted(by_centroids, key=lambda number: -by_centroids[number])[:depth]
        assert lists.candidates(query, probes, depth).tolist() == best


def test_buckets_of_the_worked_example():
    assert packed(np.array([[3, 0, 2, 1]], np.uint8), 2).tolist() == [[198]]


@pytest.fixture(scope="module")
def clustered():
    rng = np.random.default_rng(0)
    x = unit(rng, 20, 16)[rng.integers(0, 20, 1500)] + 0.2 * rng.normal(size=(1500, 16))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("bits", "least"), [(1, 0.93), (2, 0.97), (4, 0.99)])
def test_more_bits_are_nearer(clustered, bits, least, tmp_path, monkeypatch):
    mesh = local_mesh(ConfigDict({"mesh": {"fsdp": 1}}))
    codec = Codec.learn(clustered, len(clustered), bits, [0], mesh)
    stored = codec.encode(clustered, mesh)
    monkeypatch.setattr(residuals, "_PIECE", 700)
    np.testing.assert_array_equal(codec.encode(clustered, mesh), stored)
    assert stored.dtype == np.uint8 and stored.shape == (1500, codec.bytes) and codec.bytes == 4 + 2 * bits
    decoded = codec.decode(stored)
    assert (decoded * clustered).sum(axis=1).mean() > least
    np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), 1, atol=1e-5)
    # By hand: the centroid with the greatest product, and the value of each dimension's bucket.
    code = (clustered[0] @ codec.centroids.T).argmax()
    bucket = np.abs(clustered[0] - codec.centroids[code] - codec.values[:, None]).argmin(axis=0)
    by_hand = codec.centroids[code] + codec.values[bucket]
    np.testing.assert_allclose(decoded[0], by_hand / np.linalg.norm(by_hand), atol=1e-6)
    codec.save(tmp_path / "codec.npz")
    np.testing.assert_array_equal(Codec.load(tmp_path / "codec.npz", "").decode(stored), decoded)
    with pytest.raises(UserError, match=f"config.late.stored=residual{bits}: 10 vectors of 3 dimensions"):
        Codec.learn(clustered[:10, :3], 10, bits, [0], mesh)


def test_vectors_of_another_compression_are_refused(clustered, tmp_path):
    mesh = local_mesh(ConfigDict({"mesh": {"fsdp": 1}}))
    codecs = [Codec.learn(clustered[:200], 200, bits, [0], mesh) for bits in (4, 2)]
    texts = [("a", clustered[:5]), ("b", clustered[5:7]), ("c", clustered[:0])]
    codecs[0].save(path := token_store.codec_path(tmp_path, "candidates"))
    sharded_map.seal(path)
    token_store.write(
        Shards(tmp_path, "candidates", ".npy", 3, 2), texts, list, functools.partial(codecs[0].encode, mesh=mesh)
    )
    assert len(TokenStore(tmp_path, "candidates")[1]) == 2
    assert set(TokenStore(tmp_path, "candidates").centroid_lists().candidates(clustered[:1], 99, 9)) == {0, 1}
    codecs[1].save(path)
    sharded_map.seal(path)
    with pytest.raises(UserError, match="7 vectors in 12 columns where 7 in 8 belong; --stage=tokens makes it again"):
        TokenStore(tmp_path, "candidates")
    np.savez(path, centroids=np.zeros(3))
    with pytest.raises(UserError, match=r"codec\.npz: damaged, its SHA-256 .*; --stage=tokens makes it again"):
        TokenStore(tmp_path, "candidates")


@pytest.fixture
def stored(tmp_path):
    """Seven texts in three shards, the second and the fourth without a token."""
    rng = np.random.default_rng(0)
    vectors = [unit(rng, size, 8) for size in (3, 0, 5, 0, 1, 2, 4)]
    texts = [(f"d{n}", x) for n, x in enumerate(vectors)]
    token_store.write(Shards(tmp_path, "candidates", ".npy", 7, 3), texts, list, np.asarray)
    return TokenStore(tmp_path, "candidates"), vectors


def test_stored_vectors_are_read_back(stored):
    store, vectors = stored
    assert store.ids == [f"d{n}" for n in range(7)] and store.sizes.tolist() == [3, 0, 5, 0, 1, 2, 4]
    assert store.dimensions == 8 and store.bytes == 15 * 8 * 4
    for number, expected in enumerate(vectors):
        np.testing.assert_array_equal(store[number], expected.reshape(-1, 8))
    padded = store.as_queries()
    np.testing.assert_array_equal(padded.mask.sum(axis=1), store.sizes)
    np.testing.assert_array_equal(padded.vectors[2][padded.mask[2]], vectors[2])


def test_texts_without_a_token_are_not_found_and_find_nothing(stored):
    store, vectors = stored
    queries = Queries(*store.as_queries())
    scores_QK, rows_QK = ranked(queries, store, 5, 7)
    expected = np.full((7, 7), -np.inf)
    for q, n in np.ndindex(7, 7):
        if len(vectors[q]) and len(vectors[n]):
            expected[q, n] = (vectors[q].astype(float) @ vectors[n].T.astype(float)).max(axis=1).sum()
    for q in range(7):
        order = sorted((n for n in range(7) if expected[q, n] > -np.inf), key=lambda n: -expected[q, n])
        assert rows_QK[q].tolist() == order + [-1] * (7 - len(order))
        np.testing.assert_allclose(scores_QK[q, : len(order)], expected[q, order], atol=1e-5)
    some_QK = np.array([[6, -1, 1, 0]] * 7)
    scores_QK = of_candidates(queries, store, some_QK)
    np.testing.assert_allclose(scores_QK, np.where(some_QK < 0, -np.inf, expected[:, some_QK[0]]), atol=1e-5)
    assert best(scores_QK, some_QK, 4)[1][1].tolist() == [-1] * 4


def test_vectors_of_another_set_are_refused(stored, tmp_path):
    store, _ = stored
    store.check("candidates", store.ids)
    with pytest.raises(UserError, match="older than the set: of its 7 candidates 'x' is number 2, and 'd1' of the 7"):
        store.check("candidates", ["d0", "x", *store.ids[2:]])
    path = sorted(tmp_path.glob("*.npy"))[0]
    np.save(path, np.zeros((2, 8), np.float32))
    with pytest.raises(UserError, match=r"damaged, its SHA-256 .*; --stage=tokens makes it again"):
        TokenStore(tmp_path, "candidates")


def test_nothing_to_rank_is_refused():
    fields = make_config("colbert", **{"late.systems": ()}).late
    with pytest.raises(UserError, match=r"late.systems=\(\) ranks nothing"):
        check_settings(fields)
    fields.probes = 4
    check_settings(fields)
