"""Search by MaxSim: MUVERA's vectors, vectors of few bytes, and their files."""

import numpy as np
import pytest
from ml_collections import ConfigDict
from support.tiny import make_config

from retrieval.common.errors import UserError
from retrieval.methods.late_interaction import token_store
from retrieval.methods.late_interaction.maxsim_search import best, of_candidates, ranked
from retrieval.methods.late_interaction.maxsim_stage import check_settings
from retrieval.methods.late_interaction.muvera import Muvera, are_sizes, parts
from retrieval.methods.late_interaction.residuals import Codec, packed
from retrieval.methods.late_interaction.token_encoder import Queries
from retrieval.methods.late_interaction.token_store import TokenStore
from retrieval.recipes.parameters import local_mesh
from retrieval.search import sharded_map
from retrieval.search.sharded_map import Shards

QUERY = np.array([[0.6, 0.8], [0.8, -0.6]], np.float32)
DOCUMENT = np.array([[1, 0], [0.8, 0.6], [-0.6, 0.8]], np.float32)


def unit(rng, *shape):
    x = rng.normal(size=shape).astype(np.float32)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_muvera_of_the_worked_example():
    """T8: two planes, the axes; part 0 of the document is empty, and its first and last token are one plane away."""
    muvera = Muvera(2, 1, 2, 2)
    muvera.cuts = [muvera.cuts[0]._replace(planes=np.eye(2, dtype=np.float32))]
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32)
    assert parts(corners, np.eye(2))[0].tolist() == [2, 3, 1, 0]
    assert parts(DOCUMENT, np.eye(2))[0].tolist() == [3, 2, 1]
    np.testing.assert_allclose(muvera.query(QUERY), [0, 0, 0, 0, 0.6, 0.8, 0.8, -0.6], atol=1e-6)
    np.testing.assert_allclose(muvera.document(DOCUMENT), [1, 0, -0.6, 0.8, 0.8, 0.6, 1, 0], atol=1e-6)
    assert muvera.query(QUERY) @ muvera.document(DOCUMENT) == pytest.approx(1.76)


def test_larger_vectors_of_muvera_are_nearer_to_maxsim():
    rng = np.random.default_rng(0)
    queries, documents = unit(rng, 20, 6, 16), unit(rng, 60, 10, 16)
    exact = np.einsum("qae,nle->qnal", queries, documents).max(axis=3).sum(axis=2)

    def correlation(repetitions, planes, size):
        muvera = Muvera(16, repetitions, planes, size)
        assert muvera.size == repetitions * 2**planes * size
        estimates = np.stack([muvera.query(q) for q in queries]) @ np.stack([muvera.document(d) for d in documents]).T
        return np.corrcoef(estimates.reshape(-1), exact.reshape(-1))[0, 1]

    small, projected, large = correlation(1, 2, 16), correlation(30, 4, 8), correlation(30, 4, 16)
    assert small < projected < large and large > 0.7
    assert (Muvera(16, 2, 2, 8).document(np.zeros((0, 16), np.float32)) == 0).all()
    np.testing.assert_array_equal(Muvera(16, 2, 2, 8).query(queries[0]), Muvera(16, 2, 2, 8).query(queries[0]))


def test_sizes_are_read():
    assert are_sizes(("1x0x1", "20x5x16"))
    assert not are_sizes(("20x5",)) and not are_sizes("20x5x16") and not are_sizes(("0x5x16",))


def test_buckets_of_the_worked_example():
    """T4."""
    assert packed(np.array([[3, 0, 2, 1]], np.uint8), 2).tolist() == [[198]]


@pytest.fixture(scope="module")
def clustered():
    rng = np.random.default_rng(0)
    x = unit(rng, 20, 16)[rng.integers(0, 20, 1500)] + 0.2 * rng.normal(size=(1500, 16))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("bits", "least"), [(1, 0.93), (2, 0.97), (4, 0.99)])
def test_more_bits_are_nearer(clustered, bits, least, tmp_path):
    mesh = local_mesh(ConfigDict({"mesh": {"fsdp": 1}}))
    codec = Codec.learn(clustered, len(clustered), bits, [0], mesh)
    stored = codec.encode(clustered)
    assert stored.dtype == np.uint8 and stored.shape == (1500, codec.bytes) and codec.bytes == 4 + 2 * bits
    decoded = codec.decode(stored)
    assert (decoded * clustered).sum(axis=1).mean() > least
    np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), 1, atol=1e-5)
    # By hand: the centroid with the greatest product, and the value of each dimension's bucket.
    code = (clustered[0] @ codec.centroids.T).argmax()
    bucket = (clustered[0] - codec.centroids[code] > codec.cutoffs[:, None]).sum(axis=0)
    by_hand = codec.centroids[code] + codec.values[bucket]
    np.testing.assert_allclose(decoded[0], by_hand / np.linalg.norm(by_hand), atol=1e-6)
    codec.save(tmp_path / "codec.npz")
    np.testing.assert_array_equal(Codec.load(tmp_path / "codec.npz", "").decode(stored), decoded)
    with pytest.raises(UserError, match=f"config.late.stored=residual{bits}: 10 vectors of 3 dimensions"):
        Codec.learn(clustered[:10, :3], 10, bits, [0], mesh)


def test_vectors_of_another_compression_are_refused(clustered, tmp_path):
    mesh = local_mesh(ConfigDict({"mesh": {"fsdp": 1}}))
    codecs = [Codec.learn(clustered[:200], 200, bits, [0], mesh) for bits in (4, 2)]
    texts = [("a", clustered[:5]), ("b", clustered[5:7])]
    codecs[0].save(path := token_store.codec_path(tmp_path, "candidates"))
    sharded_map.seal(path)
    token_store.write(Shards(tmp_path, "candidates", ".npy", 2, 2), texts, list, "float16", codecs[0])
    assert len(TokenStore(tmp_path, "candidates")[1]) == 2
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
    token_store.write(Shards(tmp_path, "candidates", ".npy", 7, 3), texts, list, "float32")
    return TokenStore(tmp_path, "candidates"), vectors


def test_stored_vectors_are_read_back(stored):
    store, vectors = stored
    assert store.ids == [f"d{n}" for n in range(7)] and store.sizes.tolist() == [3, 0, 5, 0, 1, 2, 4]
    assert store.dimensions == 8 and store.bytes == 15 * 8 * 4
    for number, expected in enumerate(vectors):
        np.testing.assert_array_equal(store[number], expected.reshape(-1, 8))
    padded = store.as_queries()
    np.testing.assert_array_equal(padded.counts.sum(axis=1), store.sizes)
    np.testing.assert_array_equal(padded.vectors[2][padded.counts[2]], vectors[2])


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
    scores_QK = of_candidates(queries, store, some_QK, 5)
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
    fields.fde = ("4x2x8",)
    check_settings(fields)
