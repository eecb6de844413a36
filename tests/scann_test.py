"""ScaNN against exact search, and what a saved index must refuse."""

import json
import shutil
import sys

import jax
import numpy as np
import pytest

from retrieval import files
from retrieval.errors import UserError
from retrieval.search import exact, kmeans, scann, scann_tree, tuning
from retrieval.search.exact import ExactIndex
from retrieval.search.scann import ScannIndex, available

needs_scann = pytest.mark.skipif(not available(), reason="ScaNN cannot be imported here")


def clustered(candidates, queries, dimensions=32, clusters=200, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(clusters, dimensions))
    points = centers[rng.integers(0, clusters, candidates + queries)]
    points = (points + 0.7 * rng.normal(size=points.shape)).astype(np.float32)
    return points[:candidates], points[candidates:]


@pytest.fixture(scope="module")
def partitioned():
    """An index with partitions, all of which are searched until it is tuned, and queries to tune and to test it on."""
    embeddings, queries = clustered(20_000, 900)
    return ScannIndex.build(embeddings), embeddings, queries[:500], queries[500:]


@pytest.fixture(scope="module")
def sample(partitioned):
    _, embeddings, queries, _ = partitioned
    return tuning.draw(embeddings, queries, 500, 50)


def recall_of(index, embeddings, queries, k):
    """By numpy alone."""
    exact = np.argpartition(-(queries @ embeddings.T), k, axis=1)[:, :k]
    _, rows = index.search(queries, k)
    return np.mean([len(set(a) & set(b)) / k for a, b in zip(exact, rows)])


@needs_scann
def test_untuned_everything_is_searched_and_the_scores_are_exact(partitioned):
    index, embeddings, queries, _ = partitioned
    assert "283 partitions, 283 of them searched" in index.description
    scores, rows = index.search(queries, 100)
    assert recall_of(index, embeddings, queries, 100) >= 0.99
    assert scores.dtype == np.float32 and rows.dtype == np.int32
    np.testing.assert_allclose(scores, np.einsum("qe,qke->qk", queries, embeddings[rows]), rtol=1e-4, atol=1e-4)
    assert (np.diff(scores, axis=1) <= 0).all()


@needs_scann
@pytest.mark.parametrize("target", [0.5, 0.95])
def test_tuning_reaches_its_recall_on_other_queries(partitioned, sample, target):
    index, embeddings, _, others = partitioned
    tuned = index.tuned(sample, target)
    parameters = tuned._parameters
    assert recall_of(tuned, embeddings, others, 50) >= target - 0.01
    assert parameters.recall >= target and parameters.target == target
    assert parameters.leaves < 283 and parameters.reordered < 2500
    assert f"for recall@50 {target:g} ({parameters.recall:.4f} on a sample)" in tuned.description
    assert index.tuned(sample, target)._parameters == parameters
    assert "283 of them searched" in index.description  # the index itself stays as it is


@needs_scann
def test_a_higher_target_costs_more(partitioned, sample):
    index = partitioned[0]
    tuned = [index.tuned(sample, target)._parameters for target in (0.5, 0.9, 0.99)]
    costs = [p.cost(p.setting(50)) for p in tuned]
    assert costs == sorted(set(costs))


@needs_scann
def test_an_unreachable_target_takes_the_most_exact_setting(partitioned, sample, caplog):
    index = partitioned[0]
    exact = sample.exact_SK.copy()
    exact[:, :2] = [10**6, 10**6 + 1]  # there are no such candidates
    tuned = index.tuned(sample._replace(exact_SK=exact), 0.99)
    assert tuned._parameters.leaves == 283 and tuned._parameters.reordered == 2500
    assert "no setting reaches recall@50 0.99" in caplog.text
    assert tuned._parameters.recall == pytest.approx(48 / 50, abs=0.005)


@pytest.mark.parametrize(
    ("k", "expected"), [(1, (20, 300)), (100, (20, 300)), (101, (21, 303)), (300, (60, 900)), (9000, (283, 10_000))]
)
def test_more_results_than_it_was_tuned_for_take_more(k, expected):
    assert scann._Parameters(10_000, 8, 283, leaves=20, reordered=300, k=100).setting(k) == expected


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

    scores, rows = ScannIndex(Searcher(), scann._Parameters(9, 2, 1, 1, 9, 1)).search(np.ones((1, 2), np.float32), 3)
    assert rows.tolist() == [[5, 7, -1]]
    assert scores.tolist() == [[3, 3, -np.inf]]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The folder of an index with partitions, and the embeddings of its candidates."""
    folder, embeddings = tmp_path_factory.mktemp("small") / "index", clustered(6_000, 1, dimensions=16)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(folder.parent))
        ScannIndex.build(embeddings).save(folder)
    return folder, embeddings


@needs_scann
def test_a_build_leaves_no_temporary_files(small):
    assert list(small[0].parent.iterdir()) == [small[0]]


@needs_scann
@pytest.mark.parametrize("devices", [1, 8])
def test_built_again_the_index_is_the_same_on_any_devices(small, tmp_path, monkeypatch, devices):
    folder, embeddings = small
    mesh = jax.make_mesh((devices,), ("rows",), devices=jax.devices()[:devices])
    monkeypatch.setattr(scann_tree, "local_mesh", lambda: mesh)
    ScannIndex.build(embeddings).save(tmp_path / "index")
    manifests = [json.loads((place / "manifest.json").read_text()) for place in (folder, tmp_path / "index")]
    assert manifests[0] == manifests[1] and len(manifests[0]) > 4


@needs_scann
def test_its_partitions_are_those_of_our_kmeans(small):
    folder, embeddings = small
    found = kmeans.cluster(embeddings, kmeans.Rule(155, iterations=12), [0], exact.local_mesh())
    np.testing.assert_array_equal(np.load(folder / "datapoint_to_token.npy"), found.cluster_N)
    saved = (folder / "serialized_partitioner.pb").read_bytes()
    assert all(np.float64(centroid).tobytes() in saved for centroid in found.centroid_KE)


@needs_scann
def test_more_partitions_than_different_embeddings():
    few = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
    index = ScannIndex.build(few[np.arange(6_000) % 40])
    scores, rows = index.search(few, 100)
    expected = np.sort(few @ few.T, axis=1)[:, -1:]
    np.testing.assert_allclose(scores, np.repeat(expected, 100, axis=1), rtol=1e-5)
    assert (rows >= 0).all()


@needs_scann
def test_a_saved_index_answers_the_same_from_another_place(partitioned, sample, tmp_path):
    queries, index = partitioned[2], partitioned[0].tuned(sample, 0.9)
    index.save(tmp_path / "index")
    shutil.move(tmp_path / "index", tmp_path / "moved")
    for name in ("scann_assets.pbtxt", "manifest.json", "parameters.json"):
        assert str(tmp_path) not in (tmp_path / "moved" / name).read_text()
    loaded = ScannIndex.load(tmp_path / "moved")
    assert loaded.description == index.description and loaded._parameters == index._parameters
    for got, expected in zip(loaded.search(queries, 10), index.search(queries, 10)):
        np.testing.assert_array_equal(got, expected)


@needs_scann
def test_a_damaged_index_is_refused(small, tmp_path):
    names = sorted(path.name for path in small[0].iterdir())
    assert {"dataset.npy", "hashed_dataset.npy", "parameters.json", "manifest.json"} <= set(names)
    for name in names:
        shutil.copytree(small[0], tmp_path / name)
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
    assert not available()
    assert "ScaNN cannot be used" in caplog.text


@needs_scann
def test_an_index_of_another_version_is_refused(tmp_path):
    ScannIndex.build(np.eye(4, dtype=np.float32)).save(tmp_path / "index")
    (tmp_path / "index" / "parameters.json").write_text('{"candidates": 4, "dimensions": 4, "partitions": 1}')
    files.write_manifest(tmp_path / "index")
    with pytest.raises(UserError, match=r"another version of this program.*build it again"):
        ScannIndex.load(tmp_path / "index")


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
