"""What a server reads of a run, and keeps of it."""

import gc
import json
import os
import shutil
import weakref
from types import SimpleNamespace

import pytest
from conftest import REPOSITORY
from support import tiny
from support.tiny import execute

import retrieval
from retrieval.api.document_index import Hit
from retrieval.api.own_search import OwnSearch
from retrieval.data.sets.beir import RetrievalSet, write_folder
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking import fused
from retrieval.serving import about
from retrieval.stages import serve

NAMES = ("fox", "dog", "cat", "owl", "hen", "ox", "ant", "bee")


def record(name, place="forest"):
    lines = [
        f"The {name} number {n} sleeps in the {place}. There it meets the {other}." for n, other in enumerate(NAMES)
    ]
    return {"id": name, "title": f"The {name}", "text": "\n\n".join(lines)}


def write(path, documents):
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose corpus is indexed, to be copied."""
    folder = tmp_path_factory.mktemp("changing")
    changes = {"corpus": str(write(folder / "docs.jsonl", map(record, NAMES))), "sets.pydocs": False}
    changes |= {"encode.corpus": True, "stages": ("prepare", "train", "encode", "index"), "train.steps": 1}
    changes |= {"data.held_out": 0.0, "loop.validate_every": 0, "prepare.least_passage": 4}
    changes |= {"data.rates.bfs": 0.0, "data.rates.wlp": 0.0}
    made = Run(tiny.make_config("own", **tiny.CHEAP | changes), folder / "run", REPOSITORY / "requirements.lock")
    execute(made)
    return made


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "run")
    return Run(trained.config.copy_and_resolve_references(), tmp_path / "run", trained.lock)


def test_what_validation_questions_found_best_comes_first(run):
    assert list(OwnSearch(run, 5).titles) == ["dense", "bm25", "hybrid"]
    chosen = {"faq, hybrid": {"weights": [0.35, 0.65], "validation": 20, fused.CHOSEN_BY: "20 questions"}}
    records.write_record(run, "evaluate", {"done": True, "details": chosen})
    assert list(OwnSearch(run, 5).titles) == ["hybrid", "dense", "bm25"]
    assert list(OwnSearch(run, 5).search(["fox"], 1)[0]) == ["hybrid", "dense", "bm25"]
    hits = retrieval.load(run.folder).index(kind="hybrid").search("the fox", 5)
    own = OwnSearch(run, run.config.evaluate.depth).search(["the fox"], 5, ["hybrid"])[0]["hybrid"]
    assert [each.score for each in hits] == pytest.approx([each.score for each in own])


def test_a_look_for_a_newer_index_reads_no_record_again(run, monkeypatch):
    """One of a corpus is long, and requests wait while it is parsed; a record that has changed is read."""
    read, read_record = [], records.read_record

    def counted(where, stage):
        read.append(stage)
        return read_record(where, stage)

    current = serve.open_current(run)
    monkeypatch.setattr(records, "read_record", counted)
    assert not current.refresh() and "prepare" not in read
    os.utime(run.record("prepare"))
    assert not current.refresh() and "prepare" in read


def test_the_page_is_told_what_is_searched_and_how_near_is_far(run):
    run.config.sets.labelled = "asked.jsonl"
    asked = {f"q{n}": text for n, text in enumerate(("who meets the fox?", "long " * 30, "who sleeps?"))}
    write_folder(run.sets / "asked", RetrievalSet("asked", asked, [], {}))
    own = OwnSearch(run, 10)
    told = about.about(own)
    assert (told["passages"], told["documents"], told["cosine"]) == (len(own.texts), 8, True)
    assert {*told["examples"][:2]} == {asked["q0"], asked["q2"]} and told["examples"][2].startswith("The ")
    assert told["far"].keys() == {"dense"}


def test_far_is_below_the_best_hits_of_random_words():
    queries = []

    def search(several, k, systems):
        queries.extend(several)
        return [{"dense": [Hit("", "", "", place)]} for place in range(len(several))]

    vocabulary = SimpleNamespace(tokens=["[CLS]", "##ing", "an", "2026", "\u0120owl", "fox"])
    own = SimpleNamespace(model=SimpleNamespace(towers=SimpleNamespace(vocabulary=vocabulary)), search=search)
    assert about._far(own)["dense"] == pytest.approx(0.95 * 31)
    assert {len(query.split()) for query in queries} == {3} and set(" ".join(queries).split()) == {"owl", "fox"}
    vocabulary.tokens = ["[CLS]"]
    assert about._far(own) == {}


def test_a_document_is_found_by_its_id_or_that_of_a_passage(run):
    texts = OwnSearch(run, 10).texts
    whole = texts.document("fox")
    assert whole.id == "fox" and whole.title == "The fox" and texts.document("fox:1") == whole
    assert [each.id for each in whole.passages] == [f"fox:{n}" for n in range(len(whole.passages))]
    assert len(whole.passages) > 1 and texts.document("fox:99") is texts.document("no") is None


def test_a_server_looks_through_no_loaded_module_for_garbage(run, monkeypatch, caplog):
    """That takes 0.3 s, in which nobody is answered. What it serves goes without it, once there is a newer."""
    pytest.importorskip("uvicorn", reason="launch/serve.lock is not installed")
    from retrieval.serving import server

    frozen = []
    monkeypatch.setattr(server, "run", lambda *_: frozen.append((gc.get_freeze_count(), len(gc.get_objects()))))
    monkeypatch.setattr(serve, "_LOOK", 0.01)
    caplog.set_level("INFO")
    run.config.serve.host = "0.0.0.0"
    serve.serve(run)
    assert "no key is needed" in caplog.text and "serve: loading, 0 s so far" in caplog.text
    ((kept, others),) = frozen
    assert kept > 100_000 and others < kept / 10

    current = serve.open_current(run)
    searched = current.service.search.__self__
    parts = [weakref.ref(part) for part in (searched, searched.texts, searched.model)]
    gc.disable()
    try:
        del current, searched
        assert not any(part() for part in parts)
    finally:
        gc.enable()
