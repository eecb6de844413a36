"""The questions of the stage `spans`: of several files, and with the lists of a run file."""

import json

import numpy as np
import pytest

from retrieval.data.sets import answers
from retrieval.errors import UserError
from retrieval.stages import spans

KNOWN = answers.of_texts(["x"])


@pytest.fixture
def folder(tmp_path):
    """A set of two passages."""
    (tmp_path / "corpus.jsonl").write_text("".join(f'{{"_id": "d{i}", "text": "x"}}\n' for i in range(2)))
    return tmp_path


def test_a_question_of_two_files_has_the_answers_of_both(tmp_path, caplog):
    records = {"a": [("who wrote it", ["Bob", "x"]), ("who read it", ["y"])], "b": [("who wrote it", ["Robert", "x"])]}
    for name, rows in records.items():
        lines = (json.dumps({"question": question, "answer": found}) + "\n" for question, found in rows)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    found, counts = spans._of_files(f"{tmp_path / 'a.jsonl'},{tmp_path / 'b.jsonl'}", False)
    assert {each.text: each.answers.values for each in found} == {
        "who wrote it": ("Bob", "x", "Robert"),
        "who read it": ("y",),
    }
    assert "1 questions are there again in another file" in caplog.text and counts["division"]["train"] == 2


@pytest.mark.parametrize("names", ["trec.tsv,nq.jsonl", "nq.jsonl,trec.tsv"])
def test_texts_and_patterns_of_one_question_are_refused(tmp_path, names):
    (tmp_path / "nq.jsonl").write_text(json.dumps({"question": "who wrote it", "answer": ["C++ ("]}) + "\n")
    (tmp_path / "trec.tsv").write_text("1\tsource\twho wrote it\tNob.*y\n")
    with pytest.raises(
        UserError, match="answers of the question 'who wrote it' are regular expressions in one file of"
    ):
        spans._of_files(",".join(str(tmp_path / name) for name in names.split(",")), False)


def test_two_questions_of_one_id_are_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps([{"qId": "w1", "qText": f"of {name}", "answers": ["x"]}]))
    with pytest.raises(UserError, match=r"b\.json: the question id 'w1' is of another question in another file"):
        spans._of_files(f"{tmp_path / 'a.json'},{tmp_path / 'b.json'}", False)


def test_lists_of_questions_that_are_not_trained_on_are_counted(folder, caplog):
    run = folder / "r.trec"
    run.write_text("q1 Q0 d1 1 2.0 s\nq1 Q0 d0 2 1.0 s\nq2 Q0 d0 1 1.0 s\n")
    questions = [spans._Question(id, id, KNOWN) for id in ("q0", "q1")]
    lists = list(spans._of_run(run, questions, folder, depth=1))
    np.testing.assert_array_equal([rows for _, rows in lists], [[-1], [1]])
    assert "1 are of questions that are not trained on" in caplog.text and "1 questions have none" in caplog.text
    with pytest.raises(UserError, match=r"r\.trec: no list of any question that is trained on"):
        list(spans._of_run(run, questions[:1], folder, depth=1))
