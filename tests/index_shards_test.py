"""An index in shards against one index, and shards that are missing."""

import shutil

import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.search import index_shards
from retrieval.search.exact import ExactIndex, merge
from retrieval.search.index_shards import IndexShards

ROWS, K = 900, 20
RNG = np.random.default_rng(0)
EMBEDDINGS, QUERIES = (RNG.integers(-2, 3, (count, 5)).astype(np.float32) for count in (ROWS, 40))  # with many ties


class Saved(ExactIndex):
    """Exact search that is saved."""

    def __init__(self, embeddings):
        super().__init__(embeddings)
        self._rows = embeddings

    def __len__(self):
        return len(self._rows)

    @property
    def description(self):
        return "exact"

    def save(self, folder):
        folder.mkdir(parents=True)
        np.save(folder / "rows.npy", self._rows)

    @classmethod
    def load(cls, folder):
        return cls(np.load(folder / "rows.npy"))


@pytest.fixture
def folder(tmp_path):
    for shard in range(3):
        rows = EMBEDDINGS[index_shards.rows_of(shard, 3, ROWS)]
        Saved(rows).save(index_shards.shard_path(tmp_path / "index", shard, 3))
    index_shards.write_list(tmp_path / "index", 3, ROWS)
    return tmp_path / "index"


def test_shards_find_what_one_index_finds(folder):
    expected = ExactIndex(EMBEDDINGS).search(QUERIES, K)
    for ours, theirs in zip(IndexShards.load(folder, Saved.load).search(QUERIES, K), expected):
        np.testing.assert_array_equal(ours, theirs)
    parts = [IndexShards.load(folder, Saved.load, slice(host, None, 4)).search(QUERIES, K) for host in range(4)]
    assert parts[0][1].max() < 300 <= parts[1][1].min() and (parts[3][1] == -1).all()  # the last host has none
    for ours, theirs in zip(merge(parts, len(QUERIES), K), expected):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


def test_what_a_shard_does_not_find_comes_last():
    lists = [(np.array([[3, -np.inf]]), np.array([[4, -1]])), (np.array([[-2, -np.inf]]), np.array([[0, -1]]))]
    scores, rows = merge(lists, 1, 4)
    assert rows.tolist() == [[4, 0, -1, -1]] and scores.tolist() == [[3, -2, -np.inf, -np.inf]]


def test_shards_have_all_rows_once_and_are_neither_small_nor_huge():
    for shards, rows in ((3, 10), (4, 4), (7, 100)):
        parts = [index_shards.rows_of(shard, shards, rows) for shard in range(shards)]
        assert [row for part in parts for row in range(rows)[part]] == list(range(rows))
    counts = [index_shards.number(*sizes) for sizes in ((0, 8), (9_999, 2), (10_000, 2), (39_999, 8), (9_000_000, 2))]
    assert counts == [1, 1, 2, 7, 3]


def test_a_missing_shard_is_an_error_that_names_it(folder, tmp_path):
    shutil.move(folder / "shard-00001-of-00003", tmp_path / "kept")
    with pytest.raises(UserError, match=r"shard-00001-of-00003: this shard of the index is missing; --stage=index"):
        IndexShards.load(folder, Saved.load)
    IndexShards.load(folder, Saved.load, slice(0, None, 2))  # this host does not need it
    shutil.copytree(folder / "shard-00000-of-00003", folder / "shard-00001-of-00003")
    index_shards.write_list(folder, 3, ROWS + 1)
    with pytest.raises(UserError, match="a shard of 300 rows where 301 belong"):
        IndexShards.load(folder, Saved.load)
    (folder / "shards.json").write_text("[300, 300, 300] ")
    with pytest.raises(UserError, match=r"shards\.json: damaged"):
        IndexShards.load(folder, Saved.load)
