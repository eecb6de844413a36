"""The questions of the stage `spans`: of several files, and with the lists of a run file."""

import json

import numpy as np
import pytest

from retrieval.data.sets import answers, orqa_split, set_format
from retrieval.errors import UserError
from retrieval.methods.reader import spans_stage

KNOWN = answers.of_texts(["x"])


@pytest.fixture
def folder(tmp_path):
    """A set of two passages."""
    (tmp_path / "corpus.jsonl").write_text("".join(f'{{"_id": "d{i}", "text": "x"}}\n' for i in range(2)))
    return tmp_path


def test_a_question_of_two_files_has_the_answers_of_both(tmp_path, caplog):
    caplog.set_level("INFO")
    records = {"a": [("who wrote it", ["Bob", "x"]), ("who read it", ["y"])], "b": [("who wrote it", ["Robert", "x"])]}
    for name, rows in records.items():
        lines = (json.dumps({"question": question, "answer": found}) + "\n" for question, found in rows)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    found, counts = spans_stage._of_files(f"{tmp_path / 'a.jsonl'},{tmp_path / 'b.jsonl'}", False, ("qa", 3610))
    assert {each.text: each.answers.values for each in found} == {
        "who wrote it": ("Bob", "x", "Robert"),
        "who read it": ("y",),
    }
    assert "1 questions are there again in another file" in caplog.text and counts["division"]["train"] == 2
    assert "held out, 3610 in the set 'qa'" in caplog.text and "published for" not in caplog.text  # of two questions


def held_out(paths, folder):
    """The set of held-out questions of some files, over one passage."""
    (folder / "passages.jsonl").write_text('{"_id": "d", "text": "x"}\n')
    given = set_format.Given({"sets.qa_patterns": False}, folder / "none", folder)
    (value,) = set_format.SETS["qa_dev"].read(",".join(map(str, (folder / "passages.jsonl", *paths))), given)
    assert [value.name] == set_format.SETS["qa_dev"].names("") == ["qa-dev"] and len(list(value.candidates)) == 1
    return value


def test_what_is_trained_on_and_what_is_held_out_are_the_whole(tmp_path):
    questions = [f"who wrote number {i}" for i in range(80)]
    for name, part in (("a.train", questions[:50]), ("b", questions[40:])):  # some are in both
        lines = (json.dumps({"question": question, "answer": [name]}) + "\n" for question in part)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    paths = [tmp_path / "a.train.jsonl", tmp_path / "b.jsonl"]
    trained, counts = spans_stage._of_files(",".join(map(str, paths)), False, ("qa", 1))
    value = held_out(paths, tmp_path)
    dev, train = set(value.queries.values()), {each.text for each in trained}
    assert dev and train and not dev & train and dev | train == set(questions)
    assert (len(train), len(dev)) == (counts["division"]["train"], counts["division"]["dev"])
    assert set(value.answers) == set(value.queries)
    of_both = {value.answers[id].values for id, text in value.queries.items() if text in questions[40:50]}
    assert of_both == {("a.train", "b")}
    with pytest.raises(UserError, match="ORQA holds out none of these 2 questions"):
        lines = [json.dumps({"question": question, "answer": ["x"]}) for question in sorted(train)[:2]]
        (tmp_path / "few.jsonl").write_text("\n".join(lines))
        held_out([tmp_path / "few.jsonl"], tmp_path)


def test_curated_trecs_equal_questions_are_one(shared_data, caplog):
    caplog.set_level("INFO")
    path = shared_data / "qa" / "curatedtrec_2180" / "large2180-train.tsv"
    spans_stage._of_files(str(path), False, ("qa", 693))
    counted = "1343 to train on, 130 held out, 693 in the set 'qa'; published for CuratedTREC: 1353, 133 and 694 to"
    assert counted in caplog.text


def test_web_questions_are_held_out_as_published(shared_data, tmp_path):
    paths = [shared_data / "qa" / "webquestions" / f"{name}.json" for name in ("trainmodel", "val", "devtest")]
    trained, counts = spans_stage._of_files(",".join(map(str, paths)), False, ("qa", 2032))
    published = orqa_split.PUBLISHED["WebQuestions"]
    assert (len(trained), len(held_out(paths, tmp_path).queries), 2032) == published
    assert counts["division"]["published"] == {"WebQuestions": published._asdict()}


@pytest.mark.parametrize("names", ["trec.tsv,nq.jsonl", "nq.jsonl,trec.tsv"])
def test_texts_and_patterns_of_one_question_are_refused(tmp_path, names):
    (tmp_path / "nq.jsonl").write_text(json.dumps({"question": "who wrote it", "answer": ["C++ ("]}) + "\n")
    (tmp_path / "trec.tsv").write_text("1\tsource\twho wrote it\tNob.*y\n")
    with pytest.raises(
        UserError, match="answers of the question 'who wrote it' are regular expressions in one file of"
    ):
        spans_stage._of_files(",".join(str(tmp_path / name) for name in names.split(",")), False, ("qa", 3610))


def test_two_questions_of_one_id_are_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps([{"qId": "w1", "qText": f"of {name}", "answers": ["x"]}]))
    with pytest.raises(UserError, match=r"b\.json: the question id 'w1' is of another question in another file"):
        spans_stage._of_files(f"{tmp_path / 'a.json'},{tmp_path / 'b.json'}", False, ("qa", 3610))


def test_lists_of_questions_that_are_not_trained_on_are_counted(folder, caplog):
    run = folder / "r.trec"
    run.write_text("q1 Q0 d1 1 2.0 s\nq1 Q0 d0 2 1.0 s\nq2 Q0 d0 1 1.0 s\n")
    questions = [spans_stage._Question(id, id, KNOWN) for id in ("q0", "q1")]
    lists = list(spans_stage._of_run(run, questions, folder, depth=1, third=""))
    np.testing.assert_array_equal([rows for _, rows in lists], [[-1], [1]])
    assert "1 are of questions that are not trained on" in caplog.text and "1 questions have none" in caplog.text
    with pytest.raises(UserError, match=r"r\.trec: no list of any question that is trained on"):
        list(spans_stage._of_run(run, questions[:1], folder, depth=1, third=""))
