"""ScaNN against exact search, and what a saved index must refuse."""

import json
import shutil
import sys

import numpy as np
import pytest

from retrieval.errors import UserError
from retrieval.search import scann
from retrieval.search.exact import ExactIndex
from retrieval.search.scann import ScannIndex, available, recall_against

needs_scann = pytest.mark.skipif(not available(), reason="ScaNN cannot be imported here")


def clustered(candidates, queries, dimensions=32, clusters=200, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(clusters, dimensions))
    points = centers[rng.integers(0, clusters, candidates + queries)]
    points = (points + 0.7 * rng.normal(size=points.shape)).astype(np.float32)
    return points[:candidates], points[candidates:]


@pytest.fixture(scope="module")
def partitioned():
    """An index with partitions, of which a search for few candidates sees about half."""
    embeddings, queries = clustered(40_000, 300)
    return ScannIndex.build(embeddings), embeddings, queries


@needs_scann
def test_recall_with_partitions_and_exact_scores(partitioned):
    index, embeddings, queries = partitioned
    assert "400 partitions, 200 of them searched" in index.description
    scores, rows = index.search(queries, 100)
    exact_scores, exact_rows = ExactIndex(embeddings).search(queries, 100)
    assert recall_against(exact_rows, rows) >= 0.97
    assert scores.dtype == np.float32 and rows.dtype == np.int32
    np.testing.assert_allclose(scores, np.einsum("qe,qke->qk", queries, embeddings[rows]), rtol=1e-4, atol=1e-4)
    assert (np.diff(scores, axis=1) <= 0).all()
    np.testing.assert_allclose(scores[:, 0], exact_scores[:, 0], rtol=0.05)


@pytest.mark.parametrize(
    "candidates, partitions, k, searched",
    [(40_000, 400, 10, 200), (40_000, 400, 150, 300), (40_000, 400, 1000, 400), (1_000_000, 2000, 100, 400)],
)
def test_partitions_searched_by_the_documented_rule(candidates, partitions, k, searched):
    assert scann._Parameters(candidates, 8, partitions).searched(k) == searched


@needs_scann
def test_small_corpora_are_searched_exactly():
    embeddings, queries = clustered(700, 50)
    index = ScannIndex.build(embeddings)
    assert "brute force" in index.description
    scores, rows = index.search(queries, 20)
    exact_scores, exact_rows = ExactIndex(embeddings).search(queries, 20)
    np.testing.assert_array_equal(rows, exact_rows)
    np.testing.assert_allclose(scores, exact_scores, rtol=1e-5, atol=1e-5)


@needs_scann
def test_fewer_candidates_than_asked_for_and_ties():
    index = ScannIndex.build(np.array([[0, 1], [1, 0], [1, 0], [1, 0]], np.float32))
    scores, rows = index.search(np.array([[2, 1]], np.float32), 6)
    assert rows.tolist() == [[1, 2, 3, 0, -1, -1]]
    assert scores.tolist() == [[2, 2, 2, 1, -np.inf, -np.inf]]
    assert index.search(np.zeros((0, 2), np.float32), 3)[1].shape == (0, 3)


def test_what_scann_fills_up_with_is_no_result():
    """Where ScaNN finds too little in the partitions it searches, it returns row 0 with a score of NaN."""

    class Searcher:
        def search_batched_parallel(self, queries, *_):
            return np.array([[7, 5, 0]], np.uint32), np.array([[3, 3, np.nan]], np.float32)

    scores, rows = ScannIndex(Searcher(), scann._Parameters(9, 2, 1)).search(np.ones((1, 2), np.float32), 3)
    assert rows.tolist() == [[5, 7, -1]]
    assert scores.tolist() == [[3, 3, -np.inf]]


@needs_scann
def test_built_twice_the_index_is_the_same(tmp_path):
    embeddings, _ = clustered(6_000, 1, dimensions=16)
    for name in ("first", "second"):
        ScannIndex.build(embeddings).save(tmp_path / name)
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("first", "second")]
    assert manifests[0] == manifests[1] and len(manifests[0]) > 4


@needs_scann
def test_a_saved_index_answers_the_same_from_another_place(partitioned, tmp_path):
    index, _, queries = partitioned
    index.save(tmp_path / "index")
    shutil.move(tmp_path / "index", tmp_path / "moved")
    for name in ("scann_assets.pbtxt", "manifest.json", "parameters.json"):
        assert str(tmp_path) not in (tmp_path / "moved" / name).read_text()
    loaded = ScannIndex.load(tmp_path / "moved")
    assert loaded.description == index.description
    for got, expected in zip(loaded.search(queries, 10), index.search(queries, 10)):
        np.testing.assert_array_equal(got, expected)


@needs_scann
def test_a_damaged_index_is_refused(tmp_path):
    ScannIndex.build(clustered(6_000, 1, dimensions=8)[0]).save(tmp_path / "index")
    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert {"dataset.npy", "hashed_dataset.npy", "parameters.json", "manifest.json"} <= set(names)
    for name in names:
        shutil.copytree(tmp_path / "index", tmp_path / name)
        data = bytearray((tmp_path / name / name).read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / name / name).write_bytes(data)
        with pytest.raises(UserError):
            ScannIndex.load(tmp_path / name)
        (tmp_path / name / name).unlink()
        with pytest.raises(UserError, match=r"missing|no such file"):
            ScannIndex.load(tmp_path / name)


@needs_scann
def test_pickled_data_is_refused(tmp_path):
    ScannIndex.build(np.eye(4, dtype=np.float32)).save(tmp_path / "index")
    ScannIndex.load(tmp_path / "index")
    (tmp_path / "index" / "scann_docids.pkl").write_bytes(b"")
    with pytest.raises(UserError, match=r"scann_docids\.pkl: refused"):
        ScannIndex.load(tmp_path / "index")


@needs_scann
def test_a_failed_save_leaves_the_index_that_was_there(tmp_path, monkeypatch):
    ScannIndex.build(np.eye(4, dtype=np.float32)).save(tmp_path / "index")
    before = (tmp_path / "index" / "manifest.json").read_bytes()
    monkeypatch.setattr(scann, "write_manifest", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ScannIndex.build(np.eye(5, dtype=np.float32)).save(tmp_path / "index")
    assert (tmp_path / "index" / "manifest.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@needs_scann
def test_bad_embeddings_are_refused():
    with pytest.raises(UserError, match="NaN"):
        ScannIndex.build(np.full((3, 2), np.nan, np.float32))
    with pytest.raises(UserError, match="no candidates"):
        ScannIndex.build(np.zeros((0, 2), np.float32))
    index = ScannIndex.build(np.eye(4, dtype=np.float32))
    with pytest.raises(UserError, match="query embeddings"):
        index.search(np.full((1, 4), np.inf, np.float32), 1)
    with pytest.raises(UserError, match="3 dimensions and the candidates 4"):
        index.search(np.ones((1, 3), np.float32), 1)


def test_without_scann_it_is_not_available(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "scann", None)
    monkeypatch.setitem(sys.modules, "scann.scann_ops.py", None)
    assert not available()
    assert "ScaNN cannot be used" in caplog.text


def test_recall_against_by_hand():
    exact = np.array([[1, 2, 3, 4], [5, 6, -1, -1]])
    approximate = np.array([[4, 9, 1, 8], [5, -1, -1, -1]])
    assert recall_against(exact, approximate) == pytest.approx((2 / 4 + 1 / 2) / 2)
    with pytest.raises(ValueError, match="2 exact lists and 1"):
        recall_against(exact, approximate[:1])
