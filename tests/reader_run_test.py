"""A reader from BM25's paragraphs to answers, on the toy corpus."""

import collections
import dataclasses
import json
import re
import string

import numpy as np
import pytest
from support import toy_corpus
from support.tiny import execute, make_run
from support.toy_store import URL, copy_up

import retrieval
from retrieval import files
from retrieval.api.own_search import OwnSearch
from retrieval.data.sets import beir, orqa_split
from retrieval.errors import UserError
from retrieval.methods.reader import answer_choice, answer_stage, readers
from retrieval.methods.reader.answer_choice import WEIGHTS
from retrieval.methods.reader.answering import Answerer
from retrieval.methods.reader.readers import OwnReader, open_reader
from retrieval.methods.writer.answer_maker import chosen
from retrieval.methods.writer.answer_proposer import AnswerProposer
from retrieval.methods.writer.judges import AnswerJudge
from retrieval.pipeline import preflight, records
from retrieval.pipeline import stage as stages
from retrieval.pipeline.work_directory import Asked
from retrieval.search import encoding
from retrieval.serving.own_service import service_of

pytest_plugins = ["support.machines_of_a_store"]
STAGES = ("prepare", "sets", "index", "spans", "train", "evaluate", "answer", "report")
CHANGES = {
    "stages": STAGES,
    "sets.reqa": "",
    "split.set": "squad",
    "split.ratio": 0.7,
    "split.validation": 0.2,
    "split.shards": 2,
    "data.query_length": 16,
    "data.document_length": 64,
    "data.paragraphs": 3,
    "spans.depth": 3,
    "train.batch_size": 8,
    "train.steps": 24,
    "train.learning_rate": 3e-3,
    "train.select": True,
    "encode.corpus": False,
    "answer.paragraphs": 3,
}


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
    run = reader(inputs, tmp_path_factory.mktemp("reader") / "run", **{"split.ratio": 0.7})
    preflight.check(run, run.config.stages)
    execute(run)
    return run


def answers_of(run, system="bm25"):
    lines = (run.folder / "answered" / "squad" / f"{system}.jsonl").read_text().splitlines()
    return {line["_id"]: line for line in map(json.loads, lines)}


def official(text):
    """SQuAD's normalisation, written anew from its description."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return [word for word in re.split(r"\s+", text) if word and word not in ("a", "an", "the")]


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


def test_a_head_that_scores_passages_counts_where_no_weight_is_given(trained):
    assert records.details(trained, "answer")["squad, bm25"]["weight"] == 0.5
    for each in (each for line in answers_of(trained).values() for each in line["answers"]):
        assert each["score"] == pytest.approx((each["reader"] + each["retriever"]) / 2, abs=1e-5)


def test_metrics_are_those_of_the_file_of_answers(trained):
    value = beir.read_folder(trained.sets / "squad")
    exact, overlap = [], []
    for id, line in answers_of(trained).items():
        given = official(line["answers"][0]["answer"])
        wanted = [official(text) for text in value.answers[id].values]
        exact.append(max(given == right for right in wanted))
        shared = [sum((collections.Counter(given) & collections.Counter(right)).values()) for right in wanted]
        overlap.append(max(2 * s / (len(given) + len(right)) for s, right in zip(shared, wanted)))
    rows = files.read_json(trained.folder / "answered" / "results.json")
    assert {row["metric"]: row["value"] for row in rows} == pytest.approx(
        {"EM": np.mean(exact), "F1": np.mean(overlap)}, abs=1e-6
    )
    assert {(row["system"], row["split"], row["queries"]) for row in rows} == {("bm25+reader", "read", len(exact))}
    report = (trained.folder / "report.md").read_text()
    assert "## squad, read" in report and "| bm25+reader |" in report
    assert "## Answers" in report and "| questions without an answer |" in report


def test_what_is_left_out_is_counted(trained):
    told = records.details(trained, "spans")
    training = beir.read_judged(trained.training)
    assert told["questions"] == len(training.qrels["train"]) - sum(told["left out"].values())
    assert set(told["left out"]) == {"questions of evaluation sets", "questions of NQ's dev set"}


def test_a_run_that_was_killed_reads_on(trained, inputs, tmp_path, monkeypatch):
    changes = {"base": str(trained.folder), "stages": ("answer",), "answer.shard_size": 5, "corpus": ""}
    changes |= {"sets.squad": "", "split.set": ""}
    run = reader(inputs, tmp_path / "run", **changes)
    preflight.check(run, ("answer",))
    real, written = encoding.write, []

    def killed(path, *rest):
        if len(written) == 1:
            raise KeyboardInterrupt
        written.append(path)
        real(path, *rest)

    monkeypatch.setattr(encoding, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        execute(run)
    before = written[0].stat().st_mtime_ns
    monkeypatch.setattr(encoding, "write", real)
    execute(run)
    assert written[0].stat().st_mtime_ns == before
    ours, theirs = answers_of(run), answers_of(trained)
    assert {id: line["answers"][0]["answer"] for id, line in ours.items()} == {
        id: line["answers"][0]["answer"] for id, line in theirs.items()
    }


@pytest.mark.parametrize("stage", ["answer", "generate"])
def test_one_on_a_store_is_copied_down_before_its_stage(trained, inputs, bucket, machine, tmp_path, stage):
    copy_up(bucket, trained.folder)
    run = reader(inputs, tmp_path / "run", **{"answer.model": URL, "generate.reader": URL})
    stages.STAGES[stage].fetch(run)
    assert open_reader(run, URL, "config.answer.model").selects


def test_search_shows_the_answer_and_its_place(trained, inputs, tmp_path, capsys):
    changes = {"base": str(trained.folder), "stages": ("index",), "encode.corpus": True, "corpus": ""}
    run = reader(inputs, tmp_path / "run", **changes, **{"sets.squad": "", "split.set": "", "search.k": 1})
    execute(run)
    for as_json in (True, False):
        asked = dataclasses.replace(run, asked=Asked("What does the Red fox eat?", as_json=as_json))
        preflight.check(asked, ("search",))
        execute(asked, "search")
    line, *shown = capsys.readouterr().out.splitlines()
    told = json.loads(line)["answer"]
    passages = {c.id: c.text for path in run.passages for c in beir.read_candidates(path)}
    assert passages[told["docid"]][told["start"] : told["end"]] == told["answer"] != ""
    assert len(json.loads(line)["systems"]["bm25"]) == 1 and told["system"] == "bm25"
    model = retrieval.load(run.folder)
    (answer,) = model.answer("What does the Red fox eat?")
    assert (answer.text, answer.hit.id, answer.score) == (
        told["answer"],
        told["docid"],
        pytest.approx(told["score"]),
    )
    given = model.answer("What does the Red fox eat?", [passages[told["docid"]], answer.hit], k=2)
    assert all(each.hit.text[each.start : each.end] == each.text for each in given) and len(given) == 2
    texts = sorted(set(passages.values()))
    among_all = model.answer("What does the Red fox eat?", texts, k=1000)
    read = {each.hit.text for each in among_all}
    assert read == set(texts[: run.config.answer.paragraphs]) and len(read) > 1
    with pytest.raises(UserError, match="the model embeds nothing: call rerank or answer"):
        model.encode_queries(["a"])
    assert shown[-3] == "answer" and shown[-2].endswith(told["answer"]) and f">>{told['answer']}<<" in shown[-1]


def test_the_weight_that_validation_chose_counts_for_questions_of_ones_own(
    trained, inputs, tmp_path, monkeypatch, capsys, caplog
):
    monkeypatch.setattr(answer_choice, "best_weight", lambda *_: (0.35, 0.0))
    changes = {"base": str(trained.folder), "stages": ("index", "answer"), "encode.corpus": True, "corpus": ""}
    changes |= {"sets.squad": "", "split.set": "", "search.k": 3, "answer.validation": "squad"}
    run = reader(inputs, tmp_path / "run", **changes)
    execute(run)
    question = "What does the Red fox eat?"
    asked = dataclasses.replace(run, asked=Asked(question, as_json=True))
    capsys.readouterr()
    execute(asked, "search")
    line = json.loads(capsys.readouterr().out)
    hits = [retrieval.Hit(**hit) for hit in line["systems"]["bm25"]]
    passages = [beir.Candidate(hit.id, hit.title, hit.text) for hit in hits]
    own = OwnReader(open_reader(run, "", "config.base"), run.config.answer.spans)
    spans = own.spans(question, passages, [hit.score for hit in hits])
    wanted, plain = (answer_choice.ranked(spans, weight)[0].score for weight in (0.35, 0.5))
    model, answerer = retrieval.load(run.folder), Answerer(run)
    service = service_of(OwnSearch(run, run.config.evaluate.depth), None, answerer, 1)
    assert service.answer
    scores = [line["answer"]["score"], model.answer(question)[0].score, service.answer(question, hits, 1)[0].score]
    assert scores == pytest.approx([wanted] * 3) and wanted != pytest.approx(plain)
    assert model.answer(question, hits)[0].score == pytest.approx(plain)  # of whatever search
    for number, (change, score, said) in enumerate(
        [
            ({}, wanted, "has the weight 0.35 beside 'bm25', as 'squad' chose"),
            ({"answer.model": str(trained.folder)}, wanted, "has the weight 0.35"),
            ({"answer.validation": "other"}, plain, "has chosen no weight for the hits of 'bm25'"),
            ({"answer.validation": ""}, plain, ""),
        ]
    ):
        other = reader(inputs, tmp_path / f"{number}", **changes | {"base": str(run.folder), "stages": ()} | change)
        caplog.clear()
        answerer = Answerer(other)
        with caplog.at_level("INFO", logger="retrieval"):
            found = [answerer.answers(question, hits, system="bm25")[0].score for _ in range(2)]
        told = [record.message for record in caplog.records if record.message.startswith("answers:")]
        assert found == pytest.approx([score] * 2) and len(told) == bool(said) and said in "".join(told)


def test_questions_of_files_are_divided_without_those_of_sets(inputs, tmp_path):
    """As the tutorial has it: a base with BM25 over its corpus, and a reader on it that trains on a file."""
    questions = [f"What is the number of the {toy_corpus.title(i)}?" for i in range(60)]
    records_of = [{"question": q, "answer": [f"number {i}"]} for i, q in enumerate(questions)]
    for name, part in (("dev", records_of[:5]), ("train", records_of)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)))
    of_set = {"sets.squad": "", "split.set": "", "corpus": ""}
    changes = of_set | {"corpus": str(inputs / "dump.xml"), "sets.qa": f"corpus,{tmp_path / 'dev.jsonl'}"}
    changes |= {"sets.qa_dev": f"corpus,{tmp_path / 'train.jsonl'}"}
    base = reader(inputs, tmp_path / "base", **changes, stages=("prepare", "sets", "index", "evaluate"))
    execute(base)
    changes = of_set | {"base": str(base.folder), "spans.questions": str(tmp_path / "train.jsonl"), "train.steps": 2}
    changes |= {"spans.set": "qa", "answer.validation": "qa-dev"}
    run = reader(inputs, tmp_path / "run", **changes, stages=("spans", "train", "answer"))
    preflight.check(run, run.config.stages)
    execute(run, "spans")
    told = records.details(run, "spans")
    is_dev = orqa_split.is_held_out(questions)
    assert told["division"]["train"] == sum(~is_dev) and told["division"]["dev"] == sum(is_dev) > 0
    assert told["left out"]["questions of evaluation sets"] == sum(~is_dev[:5]) > 0
    without = told.get("questions without an answer in their paragraphs", 0)
    assert told["questions"] + without + sum(told["left out"].values()) == sum(~is_dev)
    held_out = beir.read_queries(run.sets / "qa-dev" / "queries.jsonl")
    assert set(held_out.values()) == {question for question, held in zip(questions, is_dev) if held}
    assert (base.folder / "runs" / "qa-dev" / "bm25.trec").exists() and told["division"]["sets"] == {"qa": 5}
    assert told["division"]["published"] == {}  # 60 questions are none of the sets that ORQA divides


def test_another_reader_is_trained_and_answers(trained, inputs, tmp_path):
    changes = {"base": str(trained.folder), "stages": ("train", "answer"), "corpus": "", "sets.squad": ""}
    changes |= {
        "train.loss": "orqa_reader",
        "train.select": False,
        "train.steps": 1,
        "split.set": "",
        "data.draw": "positive",
    }
    run = reader(inputs, tmp_path / "run", **changes, **{"answer.sums": True, "answer.validation": "squad"})
    preflight.check(run, run.config.stages)
    execute(run)
    assert all(line["answers"] for line in answers_of(run).values())
    told = records.details(run, "answer")["squad, bm25"]
    assert told["validation"] == len(answers_of(run)) and told["weight"] in WEIGHTS
    own = open_reader(run, "", "config.base")
    assert own.weight(-1, False) == 0.5 and own.weight(0.7, True) == 0.7
    with pytest.raises(UserError, match=r"config\.answer\.sums=True adds up what a weight of 0"):
        own.weight(0, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer.validation": "sqad"}, r"set in config\.answer\.validation 'sqad': did you mean squad"),
        ({"answer.validation": "squad", "answer.sets": "qa"}, r"config\.answer\.sets leaves that set out"),
    ],
)
def test_the_validation_set_is_looked_at_before_passages_are_read(
    trained, inputs, tmp_path, monkeypatch, changes, message
):
    monkeypatch.setattr(answer_stage, "set_names", lambda sets: ["squad", "qa"])
    base = {"base": str(trained.folder), "stages": ("answer",), "corpus": "", "sets.squad": "", "split.set": ""}
    with pytest.raises(UserError, match=message):
        answer_stage.answer(reader(inputs, tmp_path / "run", **base, **changes))


@pytest.mark.parametrize(
    ("field", "here", "there"),
    [
        ("data.document_length", 48, 64),
        ("data.document_length", 96, 64),
        ("data.query_length", 12, 16),
        ("spans.depth", 5, 3),
        ("spans.most", 8, 32),
    ],
)
def test_spans_of_a_base_that_were_written_otherwise_are_refused(trained, inputs, tmp_path, field, here, there):
    changes = {"base": str(trained.folder), "stages": ("train",), "corpus": "", "sets.squad": "", "split.set": ""}
    run = reader(inputs, tmp_path / "run", **changes, **{field: here})
    with pytest.raises(UserError, match=rf"config\.{field}={here}: the spans of \S+run were written with {there}: set"):
        preflight.check(run, run.config.stages)
    anew = reader(inputs, tmp_path / "anew", **changes | {"stages": ("spans", "train"), field: here})
    preflight.check(anew, anew.config.stages)


def test_an_index_over_other_passages_is_refused(trained, inputs, tmp_path):
    other = json.loads((inputs / "squad.json").read_text())
    other["data"] = other["data"][:8]
    (tmp_path / "squad.json").write_text(json.dumps(other))
    changes = {"base": str(trained.folder), "corpus": "", "sets.squad": str(tmp_path / "squad.json")}
    run = reader(inputs, tmp_path / "run", **changes, stages=("sets", "spans"))
    execute(run, "sets")
    with pytest.raises(UserError, match="which has another"):
        execute(run, "spans")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.encoder": "bow_mlp"}, "needs a transformer"),
        ({"data.paragraphs": 9}, r"config\.data\.paragraphs=9 are more than config\.spans\.depth=3"),
        ({"data.negatives": 1}, r"a reader does not read it: set config\.data\.negatives=0"),
        ({"data.document_length": 20}, "leaves a paragraph less than half"),
        ({"answer.paragraphs": 1000}, r"config\.evaluate\.depth=100"),
        ({"split.set": ""}, "stage 'spans' needs questions with answers"),
    ],
)
def test_unfit_settings_are_refused_before_the_run(inputs, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        preflight.check(reader(inputs, tmp_path / "run", **changes), STAGES)


def test_answers_of_many_questions_are_those_of_one(trained):
    passages = list(beir.read_candidates(trained.sets / "squad" / "corpus.jsonl"))[:5]
    queries = list(beir.read_queries(trained.sets / "squad" / "queries.jsonl").values())[:5]
    one = OwnReader(open_reader(trained, "", "config.base"), 1)
    expected = [one.spans(query, [passage], [0.0])[0].text for query, passage in zip(queries, passages)]
    assert AnswerJudge(trained, "").answers(queries, passages) == expected
    assert AnswerJudge(trained, "").answers([], []) == []


def test_what_reads_is_compiled_before(trained, monkeypatch):
    one, shapes = OwnReader(open_reader(trained, "", "config.base"), 1), []
    find = one._find._find
    monkeypatch.setattr(one._find, "_find", lambda ids_BL, *more: shapes.append(ids_BL.shape) or find(ids_BL, *more))
    one.compile()
    compiled = set(shapes)
    for length in (1, 10, 20, 40, 80, 400):
        one.spans("What does the Red fox eat?", [beir.Candidate("", "", "red fox " * length)] * 5, [0.0] * 5)
    assert set(shapes) <= compiled and len(set(shapes)) > 1


def test_a_reader_without_questions_proposes_answers(trained, inputs, tmp_path):
    changes = {"base": str(trained.folder), "corpus": "", "sets.squad": "", "stages": ("spans", "train")}
    changes |= {"spans.asked": False, "spans.depth": 1, "data.paragraphs": 1, "train.select": False, "train.steps": 40}
    run = reader(inputs, tmp_path / "run", **changes)
    preflight.check(run, run.config.stages)
    execute(run)
    value = beir.read_folder(run.sets / "squad")
    passages = list(value.candidates)
    proposed = AnswerProposer(run, "").spans(passages)
    taken = {text for passage, best in zip(passages, proposed) for text in chosen(passage.text, (), 2, 0, best)}
    assert taken == {text for answers in value.answers.values() for text in answers.values}
    with pytest.raises(UserError, match=r"config\.answer\.model: .* trains a reader without questions"):
        readers.check(trained, str(run.folder), "config.answer.model")
    with pytest.raises(UserError, match=r"trains a reader with questions: name one of config\.spans\.asked=False"):
        AnswerProposer(run, str(trained.folder))
