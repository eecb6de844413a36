"""What a server reads of a run, and keeps of it."""

import gc
import json
import os
import shutil
import weakref

import pytest
from conftest import REPOSITORY
from support import tiny
from support.tiny import execute

from retrieval.api.own_search import OwnSearch
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking import fused
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
