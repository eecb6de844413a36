"""BM25 against bm25s; its files, and its memory."""

import shutil
import tracemalloc

import bm25s
import numpy as np
import pytest
import scipy.sparse

from retrieval.common.errors import UserError
from retrieval.search import bm25, sparse
from retrieval.search.bm25 import Bm25Index
from retrieval.search.words import Words

TEXTS = [
    "The cat sat on the mat.",
    "A dog and a cat: the cat ran!",
    "Dogs run; the dog sleeps on a mat, on a very long and old mat.",
    "Nothing here",
    "",
    "the of and",
]


@pytest.mark.parametrize("k1, b", [(0.9, 0.4), (10, 0.9)])
def test_weights_are_bm25s_bit_for_bit(k1, b):
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in rng.zipf(1.3, rng.integers(40)) % 90) for _ in range(200)]
    index, reference = Bm25Index.build(texts, "text", k1=k1, b=b), bm25s.BM25(k1=k1, b=b, method="lucene")
    reference.index([text.split() for text in texts], show_progress=False)
    for word, number in reference.vocab_dict.items():
        if word:
            scores, found = index.search([word], len(texts))
            theirs = reference.get_scores_from_ids([number])
            np.testing.assert_array_equal(np.flatnonzero(theirs), np.sort(found[found >= 0]))
            np.testing.assert_array_equal(theirs[found[found >= 0]], scores[found >= 0])
    asked = ["w1", "w2", "w1"]  # a word counts as often as it is asked for
    scores, found = index.search([" ".join(asked)], len(texts))
    theirs = reference.get_scores(asked)
    np.testing.assert_array_equal(np.flatnonzero(theirs), np.sort(found[found >= 0]))
    np.testing.assert_allclose(theirs[found[found >= 0]], scores[found >= 0], rtol=1e-5)


def test_frequencies_count_as_repeated_words():
    """Forms of a stem are added up, and a stop word counts for nothing, as in a text that repeats them."""
    words = Words(stemmer="english")
    frequencies = [{"Cats": 3, "cat": 2, "the": 9}, {"dog": 100, "mats": 1}, {}, {"cat": 1, "x-ray dogs": 2}]
    texts = [" ".join(f"{word} " * count for word, count in passage.items()) for passage in frequencies]
    given = Bm25Index.from_frequencies(iter(frequencies), "text", 10, 0.9, words)
    built = Bm25Index.build(texts, "text", 10, 0.9, words)
    assert len(given) == 4 and given.description == built.description
    for query in ("cat", "dogs mat", "ray", "the"):
        for a, b in zip(given.search([query], 4), built.search([query], 4)):
            np.testing.assert_array_equal(a, b)
    assert given.search(["cat"], 2)[1].tolist() == [[0, 3]]


@pytest.mark.parametrize("count", [0, 2.0])
def test_frequencies_are_whole_numbers(count):
    with pytest.raises(UserError, match=f"word 'cat' of passage 1 counts {count} times"):
        Bm25Index.from_frequencies([{"dog": 1}, {"cat": count}], "text")
    with pytest.raises(UserError, match="none of the 1 texts has a word"):
        Bm25Index.from_frequencies([{"the": 3}], "text")


@pytest.mark.parametrize("hits", [1, 40, 10**9])
def test_threads_change_nothing(monkeypatch, hits):
    index, queries = Bm25Index.build(TEXTS, "text"), ["cat dog", "mat", "", "unknown", "long dog"] * 60
    wanted = {k: [index.search([query], k) for query in queries] for k in (3, 100)}  # more than there are texts, too
    monkeypatch.setattr(sparse, "_HITS", hits)
    for k, alone in wanted.items():
        for found, parts in zip(index.search(queries, k), zip(*alone)):
            assert found.shape == (300, k)
            np.testing.assert_array_equal(found, np.concatenate(parts))
    assert index.search([], 3)[1].shape == (0, 3)


@pytest.mark.parametrize(("k", "rare"), [(1, 10**9), (10, 10**9), (20, 0), (2000, 0), (2000, 10**9)])
def test_blocks_of_passages_change_nothing(k, rare, monkeypatch):
    """Whole numbers, so that many scores are equal; the last block is short, and no score below 1 is a result."""
    monkeypatch.setattr(sparse, "_RARE", rare)
    rng = np.random.default_rng(0)
    weights_VN = rng.integers(-1, 3, (6, 1100)) * (rng.random((6, 1100)) < np.float32(0.3))
    queries_QV = np.array([[1, 2, 0, 0, 1, 0], [0, 0, 3, 0, 0, 0], [0, 0, 0, 0, 0, -1], [0] * 6])
    _, rows_QK = sparse.SparseIndex(scipy.sparse.csr_array(weights_VN)).search(scipy.sparse.csr_array(queries_QV), k)
    for scores, rows in zip(queries_QV @ weights_VN, rows_QK):
        expected = sorted(np.flatnonzero(scores > 0).tolist(), key=lambda row: -scores[row])[:k]
        assert rows.tolist() == expected + [-1] * (k - len(expected))


def test_a_damaged_or_missing_index_is_refused(tmp_path):
    Bm25Index.build(TEXTS, "text").save(tmp_path / "index")
    for name in ("weights.npz", "vocabulary.json", "parameters.json"):
        shutil.copytree(tmp_path / "index", tmp_path / name)
        data = bytearray((tmp_path / name / name).read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / name / name).write_bytes(data)
        with pytest.raises(UserError, match=rf"{name}: damaged"):
            Bm25Index.load(tmp_path / name)
    with pytest.raises(UserError, match="no such file"):
        Bm25Index.load(tmp_path / "nowhere")


def test_what_cannot_be_indexed_is_refused():
    with pytest.raises(UserError, match="none of the 2 texts has a word"):
        Bm25Index.build(["the", "?"], "text")
    with pytest.raises(UserError, match="none of the 0 texts"):
        Bm25Index.build([], "text")
    for k1, b in ((-1, 0.5), (1, 1.5), (1, -0.1)):
        with pytest.raises(UserError, match="k1 must be"):
            Bm25Index.build(TEXTS, "text", k1=k1, b=b)
    with pytest.raises(ValueError, match="k must be"):
        Bm25Index.build(TEXTS, "text").search(["cat"], 0)


def test_the_build_in_parts_gives_the_same_weights(monkeypatch):
    texts = [" ".join(f"w{(i * 7 + j * 13) % 90}" for j in range(i % 40)) for i in range(300)]
    whole = Bm25Index.build(texts, "text")
    monkeypatch.setattr(bm25, "_PART", 100)
    in_parts = Bm25Index.build(texts, "text")
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(in_parts._index.weights, name), getattr(whole._index.weights, name))


def test_a_query_copies_no_weights(tmp_path):
    """SciPy copies the indices of both factors where they have two types: of all passages, for each query."""
    many = [f"every passage has these seven words beside number{i}" for i in range(5000)]
    Bm25Index.build(iter(many), document="text").save(tmp_path / "index")
    for index in (Bm25Index.build(iter(many), document="text"), Bm25Index.load(tmp_path / "index")):
        index.search(["number17"], 10)
        tracemalloc.start()
        rows = index.search(["number17"], 10)[1]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert rows[0, 0] == 17 and peak < index._index.weights.indices.nbytes
