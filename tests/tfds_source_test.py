"""TFDS: tiny prepared data sets with the features of the real ones, against files that hold the same; no network."""

import json
import logging
import random
import socket

import pytest
import tensorflow_datasets as tfds
from support.nq_records import HARD_TEXT, LEFT_OUT, PARAGRAPH, PEOPLE, TEXT, city, hard, judged, words
from support.nq_records import write as write_lines
from support.toy_squad import SQUAD

from retrieval.common.errors import UserError
from retrieval.data.sets import natural_questions, reqa


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    connect = socket.socket.connect

    def refuse(*args, **kwargs):
        raise AssertionError("a test reached for the network")

    def connect_here(self, address):
        return connect(self, address) if self.family == socket.AF_UNIX else refuse()

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", connect_here)


def store(folder, spec, splits, examples_a_file=2):
    """Writes what `tfds build` would, in the order given."""
    builder = tfds.builder(spec, data_dir=str(folder))
    builder.data_path.mkdir(parents=True)
    writer = tfds.core.SequentialWriter(builder.info, max_examples_per_shard=examples_a_file)
    writer.initialize_splits(list(splits))
    for split, examples in splits.items():
        writer.add_examples({split: examples})
    writer.close_all()
    return builder.data_path


def squad_examples(squad):
    """One example a question, shuffled, as in TFDS."""
    found = [
        {
            **{"id": question["id"], "title": article["title"], "context": paragraph["context"]},
            **{"question": question["question"]},
            "answers": {key: [answer[key] for answer in question["answers"]] for key in ("text", "answer_start")},
        }
        for article in squad["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    return random.Random(3).sample(found, len(found))


def unordered(value):
    return value.name, value.queries, {c.id: c for c in value.candidates}, value.qrels


@pytest.fixture(scope="module")
def squad():
    """The hand-made file, with a non-ASCII paragraph, and misplaced answers in it."""
    text = "Zoë’s café – „Köln“. It opened in 1998."
    questions = [
        {"id": "x", "question": "Wann?", "answers": [{"text": "1998", "answer_start": text.index("1998")}]},
        {"id": "y", "question": "Wo?", "answers": [{"text": "„Köln“", "answer_start": 0}]},
        {"id": "z", "question": "Who?", "answers": [{"text": "Paris", "answer_start": 3}]},
    ]
    return {"data": [*SQUAD["data"], {"title": "Café", "paragraphs": [{"context": text, "qas": questions}]}]}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, squad):
    folder = tmp_path_factory.mktemp("tfds")
    examples = squad_examples(squad)
    store(folder, "squad/v1.1", {"train": examples[:5], "validation": examples[5:]})
    return folder


@pytest.mark.parametrize("spec", ["squad", "squad/v1.1:3.0.0"])
def test_squad_is_the_set_of_the_json_files(prepared, squad, tmp_path, caplog, spec):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(squad))
    with caplog.at_level(logging.WARNING):
        expected = reqa.read_squad([path])
        value = reqa.read_squad([f"tfds:{spec}?data_dir={prepared}"])
    assert unordered(value) == unordered(expected) and len(value.queries) == 5
    warnings = [record.message for record in caplog.records if record.name == "retrieval.data.sets.reqa"]
    assert len(warnings) == 4 and warnings[:2] == warnings[2:]


def nq_example(record):
    """A full record as TFDS's builder keeps it: without the bytes of the tokens."""
    page = record["document_html"].encode()
    return {
        "id": str(record["example_id"]),
        "document": {
            "title": record["document_title"],
            "url": record["document_url"],
            "html": page,
            "tokens": [{"token": t["token"], "is_html": t["html_token"]} for t in record["document_tokens"]],
        },
        "question": {"text": record["question_text"], "tokens": record["question_text"].split()},
        "annotations": [
            {
                "id": str(annotation["annotation_id"]),
                "long_answer": {k: v for k, v in annotation["long_answer"].items() if k != "candidate_index"},
                "short_answers": [span | {"text": "not read"} for span in annotation["short_answers"]],
                "yes_no_answer": -1 if annotation["yes_no_answer"] == "NONE" else annotation["yes_no_answer"],
            }
            for annotation in record["annotations"]
        ],
    }


def test_natural_questions_is_the_set_of_the_json_files(tmp_path, caplog):
    records = [
        hard(),
        *(city(annotation, question=reason) for reason, annotation in LEFT_OUT.items()),
        city(PEOPLE, (PARAGRAPH, [words("Dr.")], "NONE"), question="two"),
        city(question="none"),
        city((PARAGRAPH, [], "NO"), question="no"),
    ]
    store(tmp_path, "natural_questions/default", {"train": [nq_example(record) for record in records]})
    path = write_lines(tmp_path / "nq.jsonl", *records)
    logs = []
    for source in (path, f"tfds:natural_questions?data_dir={tmp_path}"):
        caplog.clear()
        with caplog.at_level(logging.INFO, "retrieval"):
            value = natural_questions.read_nq([source])
        assert list(value.queries.values()) == ["hard", "two"] and len(judged(value)["two"]) == 2
        assert {c.text for c in value.candidates} == {HARD_TEXT, TEXT}
        logs.append((value, [r.message for r in caplog.records if r.name == "retrieval.data.sets.natural_questions"]))
    assert logs[0] == logs[1] and len(logs[0][1]) == len(LEFT_OUT)


BAD_SOURCES = {
    "tfds:": ["not of the form"],
    "tfds:sqaud": ["unknown TFDS data set 'sqaud'", "did you mean squad"],
    "tfds:squad?data_dri=x": ["unknown option", "data_dri", "did you mean data_dir"],
    "tfds:squad:1.0.0?data_dir={}": ["cannot open 'squad:1.0.0'", "only: 3.0.0"],
    "tfds:squad?data_dir={}&split=test": ["no split 'test'", "known: train, validation"],
}


@pytest.mark.parametrize("source", BAD_SOURCES)
def test_a_bad_source_is_explained(prepared, source):
    with pytest.raises(UserError) as error:
        reqa.read_squad([source.format(prepared)])
    assert all(word in str(error.value) for word in BAD_SOURCES[source]), str(error.value)


@pytest.mark.parametrize("kind", ["flipped", "no info", "nothing"])
def test_damaged_data_is_named(tmp_path, squad, kind):
    if kind != "nothing":
        examples = squad_examples(squad)
        folder = store(tmp_path, "squad/v1.1", {"train": examples[:6], "validation": examples[6:]})
        if kind == "no info":
            (folder / "dataset_info.json").unlink()
        else:
            path = folder / "squad-train.tfrecord-00001"
            data = path.read_bytes()
            path.write_bytes(data[:40] + b"####" + data[44:])
    nothing = rf"nothing is prepared at .*`tfds build squad/v1\.1 --data_dir={tmp_path}`"
    with pytest.raises(UserError, match="damaged .*prepare it again" if kind == "flipped" else nothing):
        reqa.read_squad([f"tfds:squad?data_dir={tmp_path}"])
