"""ScaNN against exact search, and what a saved index must refuse."""

import shutil
import sys

import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.search.exact import ExactIndex, recall
from retrieval.search.scann import Scann, ScannIndex
from retrieval.search.windows import Rescored

needs_scann = pytest.mark.skipif(not Scann().available(), reason="ScaNN cannot be imported here")


def clustered(candidates, queries, dimensions=32, clusters=200, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(clusters, dimensions))
    points = centers[rng.integers(0, clusters, candidates + queries)]
    points = (points + 0.7 * rng.normal(size=points.shape)).astype(np.float32)
    return points[:candidates], points[candidates:]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of an index with partitions, its candidates, and queries."""
    folder = tmp_path_factory.mktemp("scann") / "index"
    embeddings, queries = clustered(12_000, 300)
    ScannIndex.build(embeddings).save(folder)
    return folder, embeddings, queries


@needs_scann
@pytest.mark.parametrize(("k", "least"), [(10, 0.985), (100, 0.97)])
def test_the_rule_finds_99_percent_and_scores_are_exact(saved, k, least):
    """What ScaNN learns depends on the order of its threads, by some thousandths of recall."""
    folder, embeddings, queries = saved
    index = ScannIndex.load(folder)
    assert "110 partitions, 22 of them searched for 10 results" in index.description and len(index) == 12_000
    scores, rows = index.search(queries, k)
    assert recall(np.argsort(-(queries @ embeddings.T), axis=1)[:, :k], rows) >= least
    assert scores.dtype == np.float32 and rows.dtype == np.int32
    np.testing.assert_allclose(scores, np.einsum("qe,qke->qk", queries, embeddings[rows]), rtol=1e-4, atol=1e-4)
    assert (np.diff(scores, axis=1) <= 0).all()


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


@needs_scann
def test_without_embeddings_of_its_own_others_score_again(saved, tmp_path):
    """The folder has codes alone, and embeddings from elsewhere find what its own would."""
    _, embeddings, queries = saved
    ScannIndex.build(embeddings, reorders=False).save(tmp_path / "index")
    assert not (tmp_path / "index" / "dataset.npy").exists()
    index = ScannIndex.load(tmp_path / "index")
    exact_scores, exact_rows = ExactIndex(embeddings).search(queries, 10)
    alone = recall(exact_rows, index.search(queries, 10)[1])
    scores, rows = Rescored(index, lambda rows_M: embeddings[rows_M], 10).search(queries, 10)
    assert alone < 0.9 and recall(exact_rows, rows) >= 0.99 and "no embeddings kept" in index.description
    same = rows == exact_rows
    np.testing.assert_allclose(scores[same], exact_scores[same], rtol=1e-5, atol=1e-4)


def test_what_scann_fills_up_with_is_no_result():
    """Where ScaNN finds too little in the partitions it searches, it returns row 0 with a score of NaN."""

    class Searcher:
        def search_batched_parallel(self, queries, *_):
            return np.array([[7, 5, 0]], np.uint32), np.array([[3, 3, np.nan]], np.float32)

    scores, rows = ScannIndex(Searcher(), 9, 2).search(np.ones((1, 2), np.float32), 3)
    assert rows.tolist() == [[5, 7, -1]]
    assert scores.tolist() == [[3, 3, -np.inf]]


@needs_scann
def test_a_saved_index_can_be_moved(saved, tmp_path):
    folder, _, queries = saved
    shutil.copytree(folder, tmp_path / "moved")
    for name in ("scann_assets.pbtxt", "manifest.json"):
        assert str(folder) not in (folder / name).read_text()
    for got, expected in zip(*(ScannIndex.load(place).search(queries, 10) for place in (folder, tmp_path / "moved"))):
        np.testing.assert_array_equal(got, expected)


@needs_scann
def test_a_damaged_index_is_refused(saved, tmp_path):
    names = sorted(path.name for path in saved[0].iterdir())
    assert {"dataset.npy", "hashed_dataset.npy", "sizes.json", "manifest.json"} <= set(names)
    for name in names:
        shutil.copytree(saved[0], tmp_path / name)
        data = bytearray((tmp_path / name / name).read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / name / name).write_bytes(data)
        with pytest.raises(UserError):
            ScannIndex.load(tmp_path / name)
        (tmp_path / name / name).unlink()
        with pytest.raises(UserError, match=r"missing|no such file"):
            ScannIndex.load(tmp_path / name)


def test_without_scann_it_is_not_available(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "scann", None)
    monkeypatch.setitem(sys.modules, "scann.scann_ops.py", None)
    assert not Scann().available()
    assert "ScaNN cannot be used" in caplog.text
