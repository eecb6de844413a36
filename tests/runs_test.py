"""TREC run files: written, read by ir_measures and by `read_run`, and refused where they are wrong."""

import ir_measures
import numpy as np
import pytest

from retrieval.errors import UserError
from retrieval.evaluation.runs import read_run, write_run

QUERIES, CANDIDATES = ["q1", "q2", "q3"], ["a", "b", "c", "d"]
SCORES = np.array([[2.5, 0.1, 0.1], [1e-30, -np.inf, -np.inf], [-np.inf] * 3], np.float32)
ROWS = np.array([[3, 0, 1], [2, -1, -1], [-1, -1, -1]], np.int32)


def test_the_file_is_what_trec_expects(tmp_path):
    write_run(tmp_path / "runs" / "x.trec", QUERIES, CANDIDATES, SCORES, ROWS, "bm25")
    expected = "q1 Q0 d 1 2.5 bm25\nq1 Q0 a 2 0.100000001 bm25\nq1 Q0 b 3 0.100000001 bm25\nq2 Q0 c 1 1e-30 bm25\n"
    assert (tmp_path / "runs" / "x.trec").read_text() == expected
    docs = list(ir_measures.read_trec_run(str(tmp_path / "runs" / "x.trec")))
    assert [(doc.query_id, doc.doc_id) for doc in docs] == [("q1", "d"), ("q1", "a"), ("q1", "b"), ("q2", "c")]


def test_what_is_written_is_read_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    queries, candidates = [f"q{n}" for n in range(50)], [f"d{n}" for n in range(90)]
    rows = rng.permuted(np.tile(np.arange(90, dtype=np.int32), (50, 1)), axis=1)[:, :30]
    scores = -np.sort(-rng.normal(size=(50, 30)).astype(np.float32) * 10.0 ** rng.integers(-20, 20, (50, 1)), axis=1)
    missing = np.arange(30) >= rng.integers(0, 31, (50, 1))
    rows, scores = np.where(missing, -1, rows), np.where(missing, -np.inf, scores).astype(np.float32)
    write_run(tmp_path / "x.trec", queries, candidates, scores, rows, "x")
    read_scores, read_rows = read_run(tmp_path / "x.trec", queries, candidates)
    longest = (rows >= 0).sum(axis=1).max()
    np.testing.assert_array_equal(read_rows, rows[:, :longest])
    np.testing.assert_array_equal(read_scores, scores[:, :longest])
    assert read_scores.dtype == np.float32 and read_rows.dtype == np.int32


def test_lines_in_any_order_and_an_empty_file(tmp_path):
    (tmp_path / "x").write_text("q2 Q0 a 2 1 t\nq1 Q0 b 1 5 t\nq2\tQ0\td  1 1.5 t\n")
    scores, rows = read_run(tmp_path / "x", QUERIES, CANDIDATES)
    assert rows.tolist() == [[1, -1], [3, 0], [-1, -1]]
    assert scores.tolist() == [[5, -np.inf], [1.5, 1], [-np.inf, -np.inf]]
    (tmp_path / "x").write_text("")
    assert read_run(tmp_path / "x", QUERIES, CANDIDATES)[1].tolist() == [[-1], [-1], [-1]]


@pytest.mark.parametrize(
    "line, message",
    [
        ("q1 Q0 b 2 0.5", "expected 'query Q0 candidate rank score tag'"),
        ("q1 Q0 b 2 0.5 t more", "expected"),
        ("", "expected"),
        ("q1 Q0 b two 0.5 t", "expected .*two"),
        ("q1 Q0 b 2 high t", "expected .*high"),
        ("q1 Q0 b 99999999999 0.5 t", "expected"),
        ("q9 Q0 b 2 0.5 t", "unknown query or candidate id 'q9'"),
        ("q1 Q0 z 2 0.5 t", "unknown query or candidate id 'z'"),
        ("q1 Q0 b 2 nan t", "NaN or infinite"),
        ("q1 Q0 b 2 inf t", "NaN or infinite"),
        ("q1 Q0 b 2 1e99 t", "NaN or infinite"),
        ("q1 Q0 b 0 0.5 t", "ranks count from 1"),
        ("q1 Q0 a 2 0.5 t", "listed twice"),
        ("q1 Q0 b 1 0.5 t", "rank is given twice"),
        ("q1 Q0 b 3 0.5 t", "a smaller rank is missing"),
        ("q1 Q0 b 2 1.5 t", "higher than that of the rank before"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    (tmp_path / "x.trec").write_text(f"q2 Q0 b 1 0.5 t\nq1 Q0 a 1 1 t\n{line}\nq3 Q0 a 1 1 t\n")
    with pytest.raises(UserError, match=rf"x\.trec, line 3: .*{message}"):
        read_run(tmp_path / "x.trec", QUERIES, CANDIDATES)


def test_what_is_no_run_file(tmp_path):
    with pytest.raises(UserError, match=r"x\.trec: no such run file"):
        read_run(tmp_path / "x.trec", QUERIES, CANDIDATES)
    (tmp_path / "x.trec").write_bytes(b"\xff\xfe\x00 1 2 3 4 5\n")
    with pytest.raises(UserError, match="line 1"):
        read_run(tmp_path / "x.trec", QUERIES, CANDIDATES)
    with pytest.raises(UserError, match="1 query ids occur more than once"):
        read_run(tmp_path / "x.trec", ["q1", "q1"], CANDIDATES)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tag": "my system"}, "tag 'my system'"),
        ({"tag": ""}, "tag ''"),
        ({"query_ids": ["q1", "q 2", "q3"]}, "query id 'q 2'"),
        ({"candidate_ids": ["a", "b", "c\n", "d"]}, "candidate id"),
        ({"scores_QK": np.where(ROWS == 2, np.nan, SCORES)}, "query 'q2' has a score of NaN or infinity"),
        ({"scores_QK": np.where(ROWS == 3, np.inf, SCORES)}, "query 'q1' has a score of NaN or infinity"),
    ],
)
def test_what_cannot_be_written_leaves_the_old_file(tmp_path, change, message):
    (tmp_path / "x.trec").write_text("old")
    arguments = dict(query_ids=QUERIES, candidate_ids=CANDIDATES, scores_QK=SCORES, rows_QK=ROWS, tag="t")
    with pytest.raises(UserError, match=message):
        write_run(tmp_path / "x.trec", **{**arguments, **change})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x.trec", "old")]


def test_wrong_shapes_and_rising_scores(tmp_path):
    with pytest.raises(ValueError, match="do not match"):
        write_run(tmp_path / "x", QUERIES[:2], CANDIDATES, SCORES, ROWS, "t")
    with pytest.raises(ValueError, match="do not match"):
        write_run(tmp_path / "x", QUERIES, CANDIDATES, SCORES[:, :2], ROWS, "t")
    with pytest.raises(ValueError, match="rise"):
        write_run(tmp_path / "x", QUERIES, CANDIDATES, SCORES[:, ::-1], ROWS, "t")
