"""Codes of vectors: worked numbers, what they stand for, and searches over them against NumPy in float64."""

import dataclasses

import jax
import ml_dtypes
import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.search import encoding, exact, vector_codes
from retrieval.search.encoding import StoredRows
from retrieval.search.exact import Exact, ExactIndex
from retrieval.search.index_kind import INDEXES
from retrieval.search.vector_codes import PRECISIONS, Codes, Form
from retrieval.search.windows import Rescored

RNG = np.random.default_rng(0)
X = RNG.normal(size=(700, 32)).astype(np.float32)
QUERIES = RNG.normal(size=(9, 32)).astype(np.float32)


def form_of(precision, vectors=X):
    return Form(precision, vectors.shape[1]).calibrated_on(vectors)


def quantised(vectors, precision, mesh=None):
    options = {"index.precision": precision, "index.rescore": 0}
    return INDEXES["quantised"].build(vectors, options, mesh)


def scores_of(form, vectors, queries):
    """The scores that an index of codes must give, in float64."""
    decoded = form.decode(form.encode(vectors))
    return queries.astype(np.float64) @ decoded.T.astype(np.float64)


def test_decoded_is_within_half_a_step():
    form, step = form_of("int8"), (X.max(axis=0) - X.min(axis=0)) / 255
    stored = form.encode(X)
    assert stored.nbytes == 32 * len(X)
    error = np.abs(form.decode(stored) - X)
    assert (error <= step / 2 + 1e-6).all() and error.max() > 0.4 * np.max(step)


def test_a_dimension_of_one_value_stands_for_it():
    vectors = np.array([[0.25, 1], [0.25, 2]], np.float32)
    form = form_of("int8", vectors=vectors)
    np.testing.assert_allclose(form.decode(form.encode(vectors))[:, 0], 0.25)


def test_bfloat16_is_rounded_to_the_nearest():
    form = Form("bfloat16", 32)
    stored = form.encode(X)
    assert stored.dtype == np.uint16
    np.testing.assert_array_equal(form.decode(stored), X.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("devices", [1, 8])
def test_a_search_over_codes_is_that_over_what_they_stand_for(precision, devices, monkeypatch):
    monkeypatch.setattr(exact, "_TILE", 128)
    monkeypatch.setattr(exact, "_PIECE", 50)  # so that a device's rows come in several
    mesh = jax.make_mesh((devices,), ("rows",), devices=jax.devices()[:devices])
    scores, rows = quantised(X, precision, mesh=mesh).search(QUERIES, 700)
    expected = scores_of(form_of(precision), X, QUERIES)
    np.testing.assert_allclose(scores, np.take_along_axis(expected, rows, axis=1), rtol=1e-5, atol=2e-5)
    assert (np.diff(scores, axis=1) <= 0).all() and (np.sort(rows) == np.arange(700)).all()


def test_rescored_int8_is_the_list_of_float32():
    truth = ExactIndex(X).search(QUERIES, 10)
    plain = quantised(X, "binary").search(QUERIES, 10)
    again = Rescored(quantised(X, "int8"), lambda rows: X[rows], 2).search(QUERIES, 10)
    np.testing.assert_array_equal(again[1], truth[1])
    np.testing.assert_allclose(again[0], truth[0], rtol=1e-5)
    assert not np.array_equal(plain[1], truth[1])


def test_rescoring_ends_where_there_are_no_more():
    x = np.concatenate([X[:3], X[:1]])  # a tie
    scores, rows = Rescored(quantised(x, "int8"), lambda rows: x[rows], 3).search(X[:1], 6)
    expected = x @ X[0]
    order = np.argsort(-expected, kind="stable")
    assert rows.tolist() == [[*order, -1, -1]] and scores[0, 4:].tolist() == [-np.inf] * 2
    np.testing.assert_allclose(scores[0, :4], expected[order], rtol=1e-5)


def write(folder, form, vectors=X, shard_size=300):
    """Embeddings as `encode` writes them."""
    texts = [(f"d{row}", row) for row in range(len(vectors))]
    rows = lambda texts: [[[row]] for row in texts]  # noqa: E731
    sizes = dict(shard_size=shard_size, batch_tokens=64, longest=1)
    encoding.encode(folder, "candidates", texts, len(texts), rows, lambda ids: vectors[ids[:, 0]], form=form, **sizes)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_stored_rows_come_back_and_are_searched(tmp_path, precision):
    form = dataclasses.replace(form_of(precision), truncated_from=64, normalised=True)
    write(tmp_path / "a", form)
    stored = StoredRows(tmp_path / "a", "candidates")
    expected = form.decode(form.encode(X))
    np.testing.assert_array_equal(stored[:], expected)
    np.testing.assert_array_equal(stored[np.array([650, 0, 299, 300, 299])], expected[[650, 0, 299, 300, 299]])
    assert stored.form.described == form.described
    assert stored.stored(slice(0, 700)).tobytes() == form.encode(X).tobytes()
    assert sum(path.stat().st_size - 128 for path in (tmp_path / "a").glob("*-of-?????.npy")) == form.encode(X).nbytes
    found = Exact().build(stored, {}).search(QUERIES, 20)
    wanted = ExactIndex(Codes(X, form), form=form).search(QUERIES, 20)
    assert [each.tobytes() for each in found] == [each.tobytes() for each in wanted]
    encoding.copy(tmp_path / "a", tmp_path / "b", "candidates", 700, 300)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("name", ["candidates.json", "candidates.ranges.npy"])
def test_what_says_how_they_are_stored_is_checked(tmp_path, name):
    write(tmp_path, form_of("int8"))
    data = bytearray((tmp_path / name).read_bytes())
    data[-3] ^= 1
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=rf"{name}: damaged, its SHA-256 .*--stage=encode makes it again"):
        StoredRows(tmp_path, "candidates")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 16}, "embeddings with dim 32, and the model and config.encode have 16"),
        ({"truncated_from": 64}, "embeddings with truncated_from None, and the model .* have 64"),
        ({"normalised": True}, "embeddings with normalised False, and the model .* have True"),
        ({"precision": "binary"}, "embeddings with precision int8, and the model .* have binary"),
    ],
)
def test_embeddings_of_another_model_are_refused(tmp_path, change, message):
    write(tmp_path, form_of("int8"))
    vector_codes.check(tmp_path, "candidates", form_of("int8"))
    with pytest.raises(UserError, match=message):
        vector_codes.check(tmp_path, "candidates", dataclasses.replace(form_of("int8"), **change))


def test_vectors_that_are_not_finite_are_refused():
    broken = X.copy()
    broken[5, 3] = np.nan
    for precision in PRECISIONS:
        with pytest.raises(UserError, match="1 of 700 candidate embeddings are not finite"):
            quantised(broken, precision)
