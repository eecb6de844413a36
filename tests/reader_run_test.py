"""A reader from BM25's paragraphs to answers, on the toy corpus."""

import dataclasses
import json

import numpy as np
import pytest
from support import toy_corpus
from support.tiny import complete, execute, make_run

import retrieval
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.sets import beir
from retrieval.evaluation import exact_match
from retrieval.runs.pipeline import preflight
from retrieval.runs.pipeline.work_directory import SearchRequest

STAGES = ("prepare", "sets", "index", "spans", "train", "evaluate", "answer", "report")
CHANGES = {"stages": STAGES, "sets.reqa": "", "split.set": "squad", "split.ratio": 0.7, "split.validation": 0.2}
CHANGES |= {"split.shards": 2, "data.query_length": 16, "data.document_length": 64, "data.paragraphs": 3}
CHANGES |= {"spans.depth": 3, "train.batch_size": 8, "train.steps": 24, "train.learning_rate": 3e-3}
CHANGES |= {"train.select": True, "encode.corpus": False, "answer.paragraphs": 3}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A dump, and SQuAD on it; one answer is in no paragraph, one question is NQ's."""
    folder = toy_corpus.write_inputs(tmp_path_factory.mktemp("inputs"))
    squad = json.loads((folder / "squad.json").read_text())
    questions = squad["data"][0]["paragraphs"][0]["qas"]
    questions.append({**questions[0], "question": "Who sings does he love me with  Reba"})
    (folder / "squad.json").write_text(json.dumps(squad))
    return folder


def reader(inputs, folder, **changes):
    return make_run("reader", inputs, folder, **{**CHANGES, "sets.squad": str(inputs / "squad.json"), **changes})


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    return complete(reader(inputs, tmp_path_factory.mktemp("reader") / "run", **{"split.ratio": 0.7}))


def answers_of(run, system="bm25"):
    lines = (run.folder / "answered" / "squad" / f"{system}.jsonl").read_text().splitlines()
    return {line["_id"]: line for line in map(json.loads, lines)}


def test_it_learns_where_answers_stand(trained):
    lines = [json.loads(line) for line in (trained.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]


def test_answers_are_slices_of_their_passages(trained):
    passages = {c.id: c.text for c in beir.read_candidates(trained.sets / "squad" / "corpus.jsonl")}
    found = answers_of(trained)
    assert found and all(line["answers"] for line in found.values())
    for line in found.values():
        for each in line["answers"]:
            assert passages[each["docid"]][each["start"] : each["end"]] == each["answer"] != ""
        scores = [each["score"] for each in line["answers"]]
        assert scores == sorted(scores, reverse=True)


def test_metrics_are_those_of_the_file_of_answers(trained):
    value = beir.read_folder(trained.sets / "squad")
    scores = [
        exact_match.scores(line["answers"][0]["answer"], value.answers[id].values, False, "")
        for id, line in answers_of(trained).items()
    ]
    rows = files.read_json(trained.folder / "answered" / "results.json")
    assert {row["metric"]: row["value"] for row in rows} == pytest.approx(
        {name: np.mean([of[name] for of in scores]) for name in ("EM", "F1")}, abs=1e-6
    )
    assert {(row["system"], row["split"], row["queries"]) for row in rows} == {("bm25+reader", "read", len(scores))}
    report = (trained.folder / "report.md").read_text()
    assert "## squad, read" in report and "| bm25+reader |" in report
    assert "## Answers" in report and "| questions without an answer |" in report


def test_search_shows_the_answer_and_its_place(trained, inputs, tmp_path, capsys):
    changes = {"base": str(trained.folder), "stages": ("index",), "encode.corpus": True, "corpus": ""}
    run = reader(inputs, tmp_path / "run", **changes, **{"sets.squad": "", "split.set": ""})
    execute(run)
    for as_json in (True, False):
        asked = dataclasses.replace(run, request=SearchRequest("What does the Red fox eat?", as_json=as_json))
        preflight.check(asked, ("search",))
        execute(asked, "search")
    line, *shown = capsys.readouterr().out.splitlines()
    told = json.loads(line)["answer"]
    passages = {c.id: c.text for path in run.passages for c in beir.read_candidates(path)}
    assert passages[told["docid"]][told["start"] : told["end"]] == told["answer"] != ""
    assert len(json.loads(line)["systems"]["bm25"]) == 5 and told["system"] == "bm25"
    model = retrieval.load(run.folder)
    (answer,) = model.answer("What does the Red fox eat?")
    assert (answer.text, answer.hit.id, answer.score) == (told["answer"], told["docid"], pytest.approx(told["score"]))
    assert shown[-3] == "answer" and shown[-2].endswith(told["answer"]) and f">>{told['answer']}<<" in shown[-1]


def test_spans_of_a_base_that_were_written_otherwise_are_refused(trained, inputs, tmp_path):
    field, here, there = "data.query_length", 12, 16
    changes = {"base": str(trained.folder), "stages": ("train",), "corpus": "", "sets.squad": "", "split.set": ""}
    run = reader(inputs, tmp_path / "run", **changes, **{field: here})
    with pytest.raises(UserError, match=rf"config\.{field}={here}: the spans of \S+run were written with {there}: set"):
        preflight.check(run, run.config.stages)
    anew = reader(inputs, tmp_path / "anew", **changes | {"stages": ("spans", "train"), field: here})
    preflight.check(anew, anew.config.stages)
