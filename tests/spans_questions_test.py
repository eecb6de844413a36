"""The questions of the stage `spans`, of several files."""

import json

import pytest

from retrieval.common.errors import UserError
from retrieval.data.sets import set_format
from retrieval.methods.reader import spans_stage


def held_out(paths, folder):
    """The set of held-out questions of some files, over one passage."""
    (folder / "passages.jsonl").write_text('{"_id": "d", "text": "x"}\n')
    given = set_format.Context({"sets.qa_patterns": False}, folder / "none", folder)
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


def test_web_questions_are_held_out_as_published(shared_data, tmp_path):
    paths = [shared_data / "qa" / "webquestions" / f"{name}.json" for name in ("trainmodel", "val", "devtest")]
    trained, counts = spans_stage._of_files(",".join(map(str, paths)), False, ("qa", 2032))
    assert (len(trained), len(held_out(paths, tmp_path).queries)) == (3417, 361)  # as ORQA publishes them
    assert (counts["division"]["train"], counts["division"]["dev"]) == (3417, 361)


def test_texts_and_patterns_of_one_question_are_refused(tmp_path):
    (tmp_path / "nq.jsonl").write_text(json.dumps({"question": "who wrote it", "answer": ["C++ ("]}) + "\n")
    (tmp_path / "trec.tsv").write_text("1\tsource\twho wrote it\tNob.*y\n")
    with pytest.raises(UserError, match="answers of 'who wrote it' are regular expressions in one file of"):
        spans_stage._of_files(f"{tmp_path / 'trec.tsv'},{tmp_path / 'nq.jsonl'}", False, ("qa", 3610))
