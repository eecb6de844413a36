"""Runs with answers on the toy corpus: what is retrieved is judged by them, and no mined negative holds one."""

import json

import numpy as np
import pytest
from support import toy_corpus
from support.answers_reference import brute_force
from support.refreshed_runs import make_run
from support.tiny import complete, execute

from retrieval.data.sets import beir
from retrieval.runs.pipeline import records

ANIMALS = 12
COLOURS = [toy_corpus.title(number).split()[0] for number in range(ANIMALS)]
QUESTIONS = [(f"What does the {toy_corpus.title(i)} do?", [f"number {i}.", "nowhere"]) for i in range(0, 60, 3)]
QUESTIONS += [("Where do the animals sleep?", ["UNDER the Snow"]), ("Who knows?", ["the president"])]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A dump, SQuAD whose answers are the colours of animals, and open-domain questions of two formats."""
    folder = tmp_path_factory.mktemp("inputs")
    toy_corpus.write_dump(folder / "dump.xml")
    toy_corpus.write_squad(folder / "squad.json", articles=ANIMALS)
    squad = json.loads((folder / "squad.json").read_text())
    for article, colour in zip(squad["data"], COLOURS, strict=True):
        for question in article["paragraphs"][0]["qas"]:
            question["answers"] = [{"text": colour, "answer_start": len("The ")}]
    (folder / "squad.json").write_text(json.dumps(squad))
    lines = (json.dumps({"question": question, "answer": answers}) + "\n" for question, answers in QUESTIONS)
    (folder / "questions.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def corpus(inputs, tmp_path_factory):
    changes = {"corpus": str(inputs / "dump.xml"), "data.negatives": 0, "sets.reqa": ""}
    run = make_run(tmp_path_factory.mktemp("corpus") / "run", inputs, "ict", **changes)
    execute(run, "prepare")
    return run


@pytest.fixture(scope="module")
def finished(inputs, corpus, tmp_path_factory):
    """Mined with BM25, and evaluated on both sets."""
    changes = {"base": str(corpus.folder), "sets.qa": f"corpus,{inputs / 'questions.jsonl'}", "encode.corpus": False}
    changes |= {"mine.answers": True, "train.steps": 2, "loop.validate_every": 0}
    return complete(make_run(tmp_path_factory.mktemp("finished") / "run", inputs, **changes))


def expected(run, folder, system, holds, cutoffs=(1, 5, 20, 100)):
    """Answer@k out of a run file, the file of passages and what holds an answer."""
    passages = {c.id: c.text for c in beir.read_candidates(folder / "corpus.jsonl")}
    queries = beir.read_queries(folder / "queries.jsonl")
    ranks = dict.fromkeys(queries, np.inf)
    for line in (run.folder / "runs" / "qa" / f"{system}.trec").read_text().splitlines():
        query, _, passage, rank, _, _ = line.split()
        if holds(queries[query], passages[passage]):
            ranks[query] = min(ranks[query], int(rank))
    return {f"Answer@{k}": np.mean([rank <= k for rank in ranks.values()]) for k in cutoffs}


def results(run):
    rows = [row for row in json.loads((run.folder / "results.json").read_text()) if row["dataset"] == "qa"]
    assert {(row["split"], row["queries"]) for row in rows} == {("answers", len(QUESTIONS))}
    systems = {row["system"] for row in rows}
    return {system: {row["metric"]: row["value"] for row in rows if row["system"] == system} for system in systems}


def test_every_system_is_judged_by_the_answers(finished):
    found, answers = results(finished), dict(QUESTIONS)
    assert found.keys() == {"bm25", "dense", "hybrid"}
    holds = lambda query, text: any(brute_force(text, answer) for answer in answers[query])  # noqa: E731
    for system, values in found.items():
        assert values == pytest.approx(expected(finished, finished.sets / "qa", system, holds), abs=1e-6)
    assert 0.5 < found["bm25"]["Answer@20"] < 1 and found["dense"] != found["bm25"]
    report = (finished.folder / "report.md").read_text()
    assert "## qa, answers" in report and "| Answer@20 |" in report and "plots/answer.qa.answers.png" in report
    assert json.loads((finished.folder / "stages" / "sets.json").read_text())["outputs"]["sets/qa/answers.jsonl"]


def test_no_negative_of_bm25_holds_an_answer(finished):
    """How they are drawn: `mining_test`."""
    training = beir.read_folder(finished.training)
    answers = {training.queries[id]: found.values for id, found in training.answers.items()}
    assert len(answers) == 2 * ANIMALS - len(beir.read_queries(finished.sets / "reqa" / "queries.jsonl"))
    lines = [json.loads(line) for line in (finished.negatives / "negatives.jsonl").read_text().splitlines()]
    drawn = [(answers[line["query"]], text["text"]) for line in lines for text in line["negative_passages"]]
    assert drawn and not any(brute_force(text, colour) for (colour,), text in drawn)
    told = records.details(finished, "mine")
    assert told["rule"]["answers"] is True and told["results with an answer"] > len(lines)
