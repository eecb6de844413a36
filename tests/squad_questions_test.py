"""SQuAD's questions in the place of generated ones."""

import json

import pytest

from benchmarks import squad_questions
from retrieval.data.labelled.grouping import Counts
from retrieval.data.labelled.labelled_format import Reading, Settings
from retrieval.data.sets.beir import Candidate
from retrieval.methods.writer.examples import GeneratedQuestions

FIRST, LAST = "The owl sees at night.", "By day the owl sleeps in an oak."


def squad(title, *paragraphs):
    """A file of one article; a question is a text and its answer, whose last place counts."""
    made = [
        {
            "context": text,
            "qas": [
                {"id": ask, "question": ask, "answers": [{"text": answer, "answer_start": text.rindex(answer)}]}
                for ask, answer in questions
            ],
        }
        for text, questions in paragraphs
    ]
    return json.dumps({"data": [{"title": title, "paragraphs": made}]})


@pytest.fixture
def sources(tmp_path):
    asked = [("when does it see", "night"), ("who sleeps", "owl"), ("where does it sleep", "an oak")]
    (tmp_path / "train.json").write_text(squad("Wise_owls", (f"{FIRST} {LAST}", asked)))
    (tmp_path / "dev.json").write_text(squad("Foxes", ("The fox is red.", [("what is red", "fox")])))
    return tmp_path / "train.json", tmp_path / "dev.json"


def test_a_question_goes_with_the_passage_of_its_answer(sources, tmp_path, monkeypatch):
    monkeypatch.setattr(squad_questions, "_HELD_OUT", 0)
    passages = [Candidate("train-0-0:1", "Wise owls", LAST), Candidate("train-0-0:0", "Wise owls", FIRST)]
    lines = "".join(json.dumps({"_id": each.id, "title": each.title, "text": each.text}) + "\n" for each in passages)
    (tmp_path / "passages-0.jsonl").write_text(lines)
    squad_questions.write(*sources, tmp_path, tmp_path)
    settings = Settings("generated", "", str(tmp_path), 0)
    read = GeneratedQuestions().read(tmp_path / "questions.jsonl", Reading(settings, tmp_path, 0, Counts()))
    assert {(each.query, each.positives[0].id) for each in read} == {
        ("who sleeps", "train-0-0:1"),  # an owl is in the other passage too
        ("where does it sleep", "train-0-0:1"),
        ("when does it see", "train-0-0:0"),
    }
    documents = [json.loads(line)["title"] for line in (tmp_path / "documents.jsonl").open()]
    assert documents == ["Wise owls", "Foxes"]
    assert json.loads((tmp_path / "test.jsonl").read_text()) == {"question": "what is red", "answer": ["fox"]}
    train = [json.loads(line)["question"] for line in (tmp_path / "train.jsonl").open()]
    assert sorted(train) == ["when does it see", "where does it sleep", "who sleeps"]
