"""ScaNN in shards against one index, and shards that are missing."""

import shutil
from typing import Any

import numpy as np
import pytest

from retrieval.errors import UserError
from retrieval.search import scann, scann_shards, tuning
from retrieval.search.exact import ExactIndex
from retrieval.search.index_kind import INDEXES, Embeddings, Share
from retrieval.search.scann_shards import ScannShards, merge

needs_scann = pytest.mark.skipif(not scann.available(), reason="ScaNN cannot be imported here")
ROWS, QUERIES, K = 12_000, 300, 20
OPTIONS = {"index.tune_queries": 300, "index.recall_target": 0.95}


def test_merged_lists_are_those_of_all_results():
    rng = np.random.default_rng(0)
    scores, rows = rng.integers(0, 5, (4, 30)).astype(np.float32), np.argsort(rng.random((4, 30)), axis=1)
    lists = []
    for part in (slice(0, 10), slice(10, 17), slice(17, 30)):
        order = np.lexsort((rows[:, part], -scores[:, part]), axis=1)
        lists.append(tuple(np.take_along_axis(values[:, part], order, axis=1) for values in (scores, rows)))
    expected = np.lexsort((rows, -scores), axis=1)
    for k in (1, 12, 30):
        merged = merge(lists, 4, k)
        np.testing.assert_array_equal(merged[0], np.take_along_axis(scores, expected[:, :k], axis=1))
        np.testing.assert_array_equal(merged[1], np.take_along_axis(rows, expected[:, :k], axis=1))
        assert merged[0].dtype == np.float32 and merged[1].shape == (4, k)


def test_what_a_shard_does_not_find_comes_last():
    lists = [(np.array([[3, -np.inf]]), np.array([[4, -1]])), (np.array([[-2, -np.inf]]), np.array([[0, -1]]))]
    scores, rows = merge(lists, 1, 4)
    assert rows.tolist() == [[4, 0, -1, -1]] and scores.tolist() == [[3, -2, -np.inf, -np.inf]]


def test_rows_that_a_shard_lacks_stay_none():
    class Short:
        def search(self, queries, k):
            return np.array([[2.0, -np.inf]], np.float32), np.array([[0, -1]], np.int32)

    shards: Any = [Short(), Short()]
    scores, rows = ScannShards(shards, [0, 5]).search(np.zeros((1, 2)), 4)
    assert rows.tolist() == [[0, 5, -1, -1]] and scores.tolist() == [[2, 2, -np.inf, -np.inf]]


def test_shards_have_all_rows_once():
    for shards, rows in ((3, 10), (4, 4), (7, 100)):
        parts = [scann_shards.rows_of(shard, shards, rows) for shard in range(shards)]
        assert [row for part in parts for row in range(rows)[part]] == list(range(rows))


def test_a_shard_is_tuned_on_the_results_that_it_has():
    exact = np.array([[0, 7, 5], [1, 2, 3], [6, 9, 8]])
    sample = tuning.Sample(np.arange(3)[:, None], exact, np.array([5, -1, 2]))
    own = scann_shards.sample_of(sample, slice(5, 10))
    assert own.queries_SE.tolist() == [[0], [2]]  # the second has none of its results there
    assert own.exact_SK.tolist() == [[-1, 2, 0], [1, 4, 3]] and own.own_S.tolist() == [0, -1]


@pytest.fixture(scope="module")
def built():
    """Embeddings, queries to tune and to test on, and the shards of three hosts."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(150, 24))
    points = centres[rng.integers(0, 150, ROWS + 2 * QUERIES)] + 0.7 * rng.normal(size=(ROWS + 2 * QUERIES, 24))
    embeddings, tuned_on, others = np.split(points.astype(np.float32), [ROWS, ROWS + QUERIES])
    contents = Embeddings(embeddings, np.arange(ROWS), lambda: tuned_on, K)
    mesh = ExactIndex(embeddings[:9])._layout.mesh
    kind = INDEXES["scann"]
    shards = [kind.build_share(Share(embeddings, contents, host, 2, mesh), OPTIONS) for host in range(2)]
    return kind.build(contents, OPTIONS), shards, embeddings, others


def firsts(shards):
    return np.cumsum([0, *map(len, shards[:-1])]).tolist()


@needs_scann
def test_shards_find_what_one_index_finds(built):
    one, shards, embeddings, queries = built
    exact = ExactIndex(embeddings).search(queries, K)[1]
    scores, rows = ScannShards(shards, firsts(shards)).search(queries, K)
    assert list(map(len, shards)) == [6000, 6000]
    recall = tuning.recalls(exact, rows).mean()
    assert recall >= 0.94 and recall >= tuning.recalls(exact, one.search(queries, K)[1]).mean() - 0.03
    np.testing.assert_allclose(scores, np.einsum("qe,qke->qk", queries, embeddings[rows]), rtol=1e-4, atol=1e-4)
    assert all("for recall@20 0.95" in shard.description for shard in shards)


@needs_scann
def test_a_shard_with_few_of_the_queries_is_searched_whole(caplog):
    """Rows lie by their direction: only 40 queries have a result in the second half."""
    rng = np.random.default_rng(0)
    angles = np.sort(rng.uniform(0, np.pi, ROWS)), np.append(rng.uniform(0, 1.4, 260), rng.uniform(2, 3, 40))
    rows, queries = (np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32) for angle in angles)
    contents, mesh = Embeddings(rows[:0], np.arange(ROWS), lambda: queries, K), ExactIndex(rows[:9])._layout.mesh
    shard = INDEXES["scann"].build_share(Share(rows, contents, 1, 2, mesh), OPTIONS)
    assert "155 partitions, 155 of them searched" in shard.description
    assert "ScaNN, shard 1: 40 queries are too few to tune it for: all is searched" in caplog.text


@needs_scann
def test_a_host_searches_its_own_shards(built, tmp_path):
    _, shards, _, queries = built
    whole = ScannShards(shards, firsts(shards))
    whole.save(tmp_path / "index")
    kind = INDEXES["scann"]
    for found in (kind.load(tmp_path / "index"), kind.load_share(tmp_path / "index", 0, 1)):
        np.testing.assert_array_equal(found.search(queries, K), whole.search(queries, K))
    parts = [kind.load_share(tmp_path / "index", host, 2).search(queries, K) for host in range(2)]
    assert parts[0][1].max() < 6000 <= parts[1][1].min()
    np.testing.assert_array_equal(merge(parts, QUERIES, K), whole.search(queries, K))
    assert len(kind.load(tmp_path / "index")) == ROWS and "2 shards" in kind.load(tmp_path / "index").description


@needs_scann
def test_a_missing_shard_is_an_error_that_names_it(built, tmp_path):
    ScannShards(built[1], firsts(built[1])).save(tmp_path / "index")
    shutil.move(tmp_path / "index" / "shard-00001-of-00002", tmp_path / "kept")
    for load in (INDEXES["scann"].load, lambda folder: INDEXES["scann"].load_share(folder, 1, 2)):
        with pytest.raises(UserError, match=r"shard-00001-of-00002: this shard of the index is missing; --stage=index"):
            load(tmp_path / "index")
    INDEXES["scann"].load_share(tmp_path / "index", 0, 2)  # this host does not need it
    shutil.copytree(tmp_path / "kept", tmp_path / "index" / "shard-00001-of-00002")
    scann_shards.write_list(tmp_path / "index", [6000, 5999])
    with pytest.raises(UserError, match="a shard of 6000 rows where 5999 belong"):
        INDEXES["scann"].load(tmp_path / "index")
