"""TREC run files: written, read by ir_measures and by us, and refused where they would be wrong."""

import gzip

import ir_measures
import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.evaluation import metrics
from retrieval.evaluation.runs import check_beginning, ids_in_runs, read_run, write_run

QUERIES, CANDIDATES = ["q1", "q2", "q3"], ["a", "b", "c", "d"]
SCORES = np.array([[2.5, 0.1, 0.1], [1e-30, -np.inf, -np.inf], [-np.inf] * 3], np.float32)
ROWS = np.array([[3, 0, 1], [2, -1, -1], [-1, -1, -1]], np.int32)


def test_the_file_is_what_trec_expects(tmp_path):
    write_run(tmp_path / "runs" / "x.trec", QUERIES, CANDIDATES, SCORES, ROWS, "bm25")
    expected = "q1 Q0 d 1 2.5 bm25\nq1 Q0 a 2 0.100000001 bm25\nq1 Q0 b 3 0.100000001 bm25\nq2 Q0 c 1 1e-30 bm25\n"
    assert (tmp_path / "runs" / "x.trec").read_text() == expected
    docs = list(ir_measures.read_trec_run(str(tmp_path / "runs" / "x.trec")))
    assert [(doc.query_id, doc.doc_id) for doc in docs] == [("q1", "d"), ("q1", "a"), ("q1", "b"), ("q2", "c")]


def test_blanks_of_ids_are_quoted_and_read_back(tmp_path):
    queries, candidates = ["q1", "q 2", "q3"], ["a", "my notes.md:0", "c", "日\u3000本"]
    write_run(tmp_path / "x.trec", queries, candidates, SCORES, ROWS, "x")
    assert "q1 Q0 my%20notes.md:0 3 " in (tmp_path / "x.trec").read_text()
    scores, rows = read_run(tmp_path / "x.trec", queries, candidates)
    np.testing.assert_array_equal(scores[:2], SCORES[:2])
    np.testing.assert_array_equal(rows[:2], ROWS[:2])


@pytest.mark.parametrize("line", ["a%20b Q0 a 1 2 x", "q1 Q0 c%20d 1 2 x"])
def test_a_name_of_two_ids_is_refused(tmp_path, line):
    path, queries, candidates = tmp_path / "x.trec", ["q1", "a b", "a%20b"], ["a", "c d", "c%20d"]
    path.write_text("q1 Q0 a 1 2 x\n")
    read_run(path, queries, candidates)  # which names neither
    path.write_text(f"q0 Q0 a 1 2 x\n{line}\n")
    with pytest.raises(UserError, match=r"x\.trec, line 2: two ids of the set are the (query|candidate) '[ac]%20[bd]'"):
        read_run(path, ["q0", *queries], candidates)


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
    again = read_run(tmp_path / "x.trec", queries, candidates)
    for actual, expected in zip(again, (scores, rows)):
        np.testing.assert_array_equal(actual, expected)
        assert actual.dtype == expected.dtype


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tag": "my system"}, "tag 'my system'"),
        ({"tag": ""}, "tag ''"),
        ({"query_ids": ["q1", "q 2", "q%202"]}, "query id 'q%202'"),
        ({"candidate_ids": ["a", "b", "", "d"]}, "candidate id"),
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


def read(path, text):
    path.write_text(text)
    return read_run(path, QUERIES, CANDIDATES)


def test_lines_may_come_in_any_order(tmp_path):
    """Of other systems too: tabs, ranks from 0 on, equal scores, an empty line, a second query in between."""
    text = "q2\tQ0\tb\t0\t5\tx\nq1 Q0 a 2 0.5 x\n\nq1 Q0 c 0 3e0 x\nq2 Q0 a 1 5 x\nq1 Q0 b 1 0.5 x\n"
    scores, rows = read(tmp_path / "x", text)
    assert rows.tolist() == [[2, 1, 0], [1, 0, -1], [-1, -1, -1]]
    assert scores.tolist() == [[3, 0.5, 0.5], [5, 5, -np.inf], [-np.inf] * 3]


def test_the_form_of_ms_marco(tmp_path):
    scores, rows = read(tmp_path / "x", "q1\td\t1\nq3\ta\t2\nq1\tb\t2\nq3\tc\t1\n")
    assert rows.tolist() == [[3, 1], [-1, -1], [2, 0]]
    assert scores.tolist() == [[-1, -2], [-np.inf] * 2, [-1, -2]]


# Runs of one query whose best is b, then d, then a, and c last, as tools write them.
FORMS = {
    "a constant rank, as BEIR": "q1 Q0 a 0 1.5 x\nq1 Q0 b 0 12.5 x\nq1 Q0 c 0 -3e-1 x\nq1 Q0 d 0 2 x\n",
    "no rank at all": "q1 q0 c - -.5 x\nq1 q0 b - 9. x\nq1 q0 a - 1.5 x\nq1 q0 d - 2 x\n",
    "a mark, and lines of Windows": "\ufeffq1 Q0 b 0 4 x\r\nq1 Q0 d 0 3 x\r\nq1 Q0 a 0 2 x\r\nq1 Q0 c 0 1 x\r\n",
    "ties with ranks": "q1 Q0 c 4 2 x\nq1 Q0 a 3 2 x\nq1 Q0 d 2 2 x\nq1 Q0 b 1 2 x\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_runs_as_tools_write_them(tmp_path, form):
    with gzip.open(tmp_path / "x", "wt", encoding="utf-8", newline="") as file:
        file.write(FORMS[form])
    check_beginning(tmp_path / "x")
    _, rows = read_run(tmp_path / "x", QUERIES, CANDIDATES)
    assert rows.tolist() == [[1, 3, 0, 2], [-1] * 4, [-1] * 4]


def test_a_run_without_ranks_has_the_metrics_of_trec_eval(tmp_path):
    random = np.random.default_rng(0)
    written = [f"{q} Q0 {c} 0 {random.integers(3)} x\n" for q in QUERIES for c in random.permutation(CANDIDATES)]
    (tmp_path / "x").write_text("".join(written))
    _, rows = read_run(tmp_path / "x", QUERIES, CANDIDATES)
    qrels = {query: {"b": 1, "d": 2} for query in QUERIES}
    expected = ir_measures.pytrec_eval.calc_aggregate(
        [ir_measures.RR, ir_measures.nDCG, ir_measures.AP], qrels, ir_measures.read_trec_run(str(tmp_path / "x"))
    )
    found = metrics.evaluate(rows, QUERIES, CANDIDATES, qrels, ["RR", "nDCG", "AP"])
    assert found == pytest.approx({str(measure): value for measure, value in expected.items()})


GOOD = "q1 Q0 a 1 2 x\nq1 Q0 b 2 1 x\n"


@pytest.mark.parametrize(
    "text, message",
    [
        (GOOD + "q1 Q0 c 3 1\n", "x, line 3: 5 columns, expected 6: query id"),
        *(
            (GOOD + f"q1 Q0 c {rank} 1 x\n", "x, line 3: query 'q1' has a rank that is not the next one")
            for rank in ("3rd", "-3", "3.0", "1_0", "٣", 22 * "9", "4")
        ),
        *(
            (GOOD + f"q1 Q0 c 3 {score} x\n", "x, line 3: the score is '.*'; it must be a finite number of 32 bits")
            for score in ("best", "nan", "-inf", "1e39", "1_0", "٣", "0x1", 5000 * "9")
        ),
        (GOOD + "q9 Q0 c 3 1 x\n", "x, line 3: the query 'q9' is unknown"),
        (GOOD + "q1 Q0 e 3 1 x\n", "x, line 3: the candidate 'e' is unknown"),
        (GOOD + "\nq1 Q0 a 3 1 x\n", "x, line 4: query 'q1' has this candidate twice"),
        (
            GOOD + "q1 Q0 c 2 1 x\n",
            "x, line 3: query 'q1' has a rank that is not the next one; number its results 1, 2, 3",
        ),
        ("q1 b 5.5\nq1 a 4.5\n", "x, line 1: query 'q1' has a rank that is not the next one"),
        (GOOD + "q1 Q0 c 3 1.5 x\n", "x, line 3: query 'q1' has a better score than at the rank before"),
        ("\n", "x: no result in it"),
    ],
)
def test_a_run_that_cannot_be_right_is_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path / "x", text)


def test_ids_of_runs_without_a_collection(tmp_path):
    (tmp_path / "a").write_text("q7 Q0 x 1 2 s\nq7 Q0 y 2 1 s\n")
    (tmp_path / "b").write_text("q8\tz\t1\nq7\tx\t1\n")
    assert ids_in_runs([tmp_path / "a", tmp_path / "b"]) == (["q7", "q8"], ["x", "y", "z"])
