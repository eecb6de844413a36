"""TREC run files: written, read by ir_measures, and not written where they would be wrong."""

import ir_measures
import numpy as np
import pytest

from retrieval.errors import UserError
from retrieval.evaluation.runs import write_run

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
    docs = ir_measures.read_trec_run(str(tmp_path / "x.trec"))
    read = [(doc.query_id, doc.doc_id, np.float32(doc.score)) for doc in docs]
    found = [
        (queries[query], candidates[rows[query, rank]], scores[query, rank]) for query, rank in np.argwhere(~missing)
    ]
    assert read == found


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
