"""Exact search against a stable sort of numpy's inner products, on one device and on several."""

import jax
import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.search import exact
from retrieval.search.exact import ExactIndex


def mesh_of(*shape):
    names = ("rows", "columns")[: len(shape)]
    return jax.make_mesh(shape, names, devices=jax.devices()[: np.prod(shape)])


@pytest.fixture
def small_tiles(monkeypatch):
    """A few thousand candidates then make many tiles."""
    monkeypatch.setattr(exact, "_TILE", 256)


def reference(embeddings, queries, k):
    """Rows and scores of the best k by a full stable sort, padded with -1 and -inf."""
    scores = queries.astype(np.float64) @ embeddings.T.astype(np.float64)
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    padding = ((0, 0), (0, k - rows.shape[1]))
    scores = np.pad(np.take_along_axis(scores, rows, axis=1), padding, constant_values=-np.inf)
    return scores, np.pad(rows, padding, constant_values=-1)


@pytest.mark.parametrize("candidates, k", [(1, 3), (127, 127), (129, 200), (5000, 9)])
def test_same_as_sorting_all_scores_with_many_ties(candidates, k):
    rng = np.random.default_rng(candidates)
    # Small whole numbers: sums are exact, and nearly every score is tied with many others.
    embeddings = rng.integers(-2, 3, (candidates, 6)).astype(np.float32)
    queries = rng.integers(-2, 3, (9, 6)).astype(np.float32)
    scores, rows = ExactIndex(embeddings, batch_size=4).search(queries, k)
    expected_scores, expected_rows = reference(embeddings, queries, k)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(scores, expected_scores)
    assert scores.dtype == np.float32 and rows.dtype == np.int32


SIZES = [(5, 9), (1100, 300), (6001, 2), (6001, 4000)]


@pytest.mark.parametrize(
    "shape, candidates, k", [*((shape, *size) for shape in [(1,), (8,)] for size in SIZES), ((2, 4), 6001, 4000)]
)
def test_ties_across_tiles_and_devices(small_tiles, shape, candidates, k):
    rng = np.random.default_rng(candidates)
    embeddings = rng.integers(-1, 2, (candidates, 3)).astype(np.float32)
    queries = rng.integers(-1, 2, (5, 3)).astype(np.float32)
    scores, rows = ExactIndex(embeddings, batch_size=4, mesh=mesh_of(*shape)).search(queries, k)
    expected_scores, expected_rows = reference(embeddings, queries, k)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(scores, expected_scores)


@pytest.mark.parametrize("candidates, queries", [(700, 7), (5000, 1)])
def test_the_same_bits_on_any_number_of_devices(small_tiles, candidates, queries):
    rng = np.random.default_rng(0)
    embeddings, queries = rng.normal(size=(candidates, 48)), rng.normal(size=(queries, 48))
    indexes = [ExactIndex(embeddings, 4, mesh_of(count)) for count in (1, 3, 8)]
    results = [index.search(queries, 50) for index in indexes]
    assert len({index._layout.rows for index in indexes}) == 1  # products of one shape, whatever that changes
    for scores, rows in results[1:]:
        assert scores.tobytes() == results[0][0].tobytes() and rows.tobytes() == results[0][1].tobytes()


def test_a_searchs_memory_does_not_grow_with_candidates(small_tiles):
    def temporaries(candidates):
        index = ExactIndex(np.ones((candidates, 4), np.float32), batch_size=64, mesh=mesh_of(2))
        with jax.set_mesh(index._layout.mesh):
            batches = np.zeros((2, 64, 4), np.float32)
            search = exact.search_batches.lower(batches, index._embeddings, 1000, index._layout, 2)
        return search.compile().memory_analysis().temp_size_in_bytes

    assert temporaries(64_000) < 1.5 * temporaries(8_000) < 64_000 * 64 * 4 / 2


def test_inside_a_mesh_of_the_callers():
    embeddings = np.arange(300, dtype=np.float32)[:, None]
    with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"))):
        _, rows = ExactIndex(embeddings, mesh=mesh_of(3)).search(np.ones((1, 1), np.float32), 3)
    assert rows.tolist() == [[299, 298, 297]]


@pytest.mark.parametrize("queries", [0, 1, 5])
def test_every_number_of_queries(queries):
    rng = np.random.default_rng(0)
    embeddings, query_embeddings = rng.normal(size=(5000, 16)), rng.normal(size=(queries, 16))
    scores, rows = ExactIndex(embeddings, batch_size=4).search(query_embeddings, 5)
    expected_scores, expected_rows = reference(embeddings, query_embeddings, 5)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5, atol=1e-5)


def test_the_sizes_of_a_gpu_give_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    embeddings, queries = rng.normal(size=(5000, 16)), rng.normal(size=(600, 16))
    expected_scores, expected_rows = ExactIndex(embeddings).search(queries, 100)
    monkeypatch.setattr(exact, "_of_gpus", lambda mesh: True)
    index = ExactIndex(embeddings)
    scores, rows = index.search(queries, 100)
    assert index._batch_size == 2048 and exact.sizes_up_to(2048) == [1, 8, 32, 512, 2048]
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-6)


def test_after_a_search_of_each_size_none_compiles(monkeypatch):
    monkeypatch.setattr(exact, "_FEW", (1, 2))
    monkeypatch.setattr(exact, "_QUERIES", 4)
    index = ExactIndex(np.ones((40, 3), np.float32), batch_size=4)
    programs = exact.search_batches._cache_size
    before = programs()
    for count in exact.sizes_up_to(4):
        index.search(np.ones((count, 3), np.float32), 2)
    assert programs() == before + 3
    for count in range(1, 5):
        for each in (index, ExactIndex(np.ones((41, 3), np.float32), batch_size=4)):  # nor where it grows a little
            each.search(np.ones((count, 3), np.float32), 2)
    assert programs() == before + 3


@pytest.mark.parametrize("order", ["ascending", "clusters"])
def test_as_many_blocks_as_are_needed(monkeypatch, order):
    """From one tile to the next a few blocks are ranked or all, for queries that need different ones."""
    monkeypatch.setattr(exact, "_TILE", 2048)
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(30_000, 4)).astype(np.float32)
    if order == "clusters":
        embeddings = np.repeat(embeddings[::100], 100, axis=0) + 0.01 * embeddings
    else:
        embeddings = embeddings[np.argsort(embeddings[:, 0])]
    queries = np.concatenate([np.eye(4), rng.normal(size=(12, 4))]).astype(np.float32)
    scores, rows = ExactIndex(embeddings, 16, mesh_of(1)).search(queries, 100)
    expected_scores, expected_rows = reference(embeddings, queries, 100)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    assert (rows == expected_rows).mean() > 0.99  # but for scores that float32 does not tell apart
    np.testing.assert_allclose(np.einsum("qke,qe->qk", embeddings[rows], queries), scores, atol=1e-5)


def test_zero_and_minus_zero_are_a_tie():
    embeddings = np.array([[-0.0], [0.0], [-0.0], [0.0]], np.float32)
    _, rows = ExactIndex(embeddings).search(np.array([[1.0]], np.float32), 4)
    assert rows.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_their_row(bad):
    good, broken = np.ones((5, 2), np.float32), np.ones((5, 2), np.float32)
    broken[3, 1] = bad
    with pytest.raises(UserError, match=r"1 of 5 candidate embeddings.*row 3"):
        ExactIndex(broken)
    with pytest.raises(UserError, match=r"1 of 5 query embeddings.*row 3"):
        ExactIndex(good).search(broken, 1)


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(UserError, match="no candidates"):
        ExactIndex(np.zeros((0, 4), np.float32))
    index = ExactIndex(np.full((3, 2), 1e30, np.float32))
    with pytest.raises(UserError, match="3 dimensions and the candidates 2"):
        index.search(np.ones((1, 3), np.float32), 1)
    with pytest.raises(UserError, match="too large for float32"):
        index.search(np.full((1, 2), 1e30, np.float32), 1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        index.search(np.ones((1, 2), np.float32), 0)
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        index.search(np.ones(2, np.float32), 1)
