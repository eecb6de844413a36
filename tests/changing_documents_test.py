"""The documents of a run change: by the stage `update`, in Python, and asked of its server."""

import dataclasses
import gc
import json
import os
import shutil
import time
import weakref

import numpy as np
import pytest
from conftest import REPOSITORY
from support import tiny
from support.tiny import execute

import retrieval
from retrieval.api import changing_documents
from retrieval.api.own_search import OwnSearch
from retrieval.errors import UserError
from retrieval.pipeline import records, runner
from retrieval.pipeline.run import Run
from retrieval.pipeline.work_directory import Asked
from retrieval.segments import segment
from retrieval.stages import handover, handover_source, serve, update
from retrieval.stages.handover_metadata import Metadata

NAMES = ("fox", "dog", "cat", "owl", "hen", "ox", "ant", "bee")
NEW = {"id": "yak", "title": "Yak", "text": "The yak carries heavy loads over the high mountains of Tibet in winter."}


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
    changes |= {
        "data.held_out": 0.0,
        "loop.validate_every": 0,
        "data.rates.bfs": 0.0,
        "data.rates.wlp": 0.0,
        "prepare.least_passage": 4,
    }
    made = Run(tiny.make_config("own", **tiny.CHEAP | changes), folder / "run", REPOSITORY / "requirements.lock")
    execute(made)
    return made


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "run")
    return Run(trained.config.copy_and_resolve_references(), tmp_path / "run", trained.lock)


def updated(run, path):
    """Does the stage; what it tells."""
    runner.run_stage(dataclasses.replace(run, asked=Asked(update=str(path))), "update")
    return records.details(run, "update")


def ids(hits):
    return [hit.id.partition(":")[0] for hit in hits]


def test_the_stage_makes_a_folder_all_that_is_searched(run, tmp_path, monkeypatch):
    same = write(tmp_path / "same.jsonl", map(record, NAMES))
    told = {"added": 0, "replaced": 0, "deleted": 0, "unchanged": len(NAMES), "generation": 1}
    assert updated(run, same) == told
    before = OwnSearch(run, 100)
    documents = [NEW, record("owl", "city"), *map(record, NAMES[4:])]
    made, embedded = segment.make, []

    def make(documents, recipe):
        embedded.extend(documents)
        return made(documents, recipe)

    monkeypatch.setattr(segment, "make", make)
    told = {"added": 1, "replaced": 1, "deleted": 3, "unchanged": 4, "generation": 2}
    path = write(tmp_path / "new.jsonl", documents)
    assert updated(run, path) == told and embedded == ["yak", "owl"]
    after = before.reopened()
    assert after.generation == 3 and before.generation == 1  # of the change, and the merge of what that left
    assert after.model is before.model
    anew = retrieval.load(run.folder).index(path, kind="bm25")
    for query in ("yak mountains", "owl city", "the number 3 sleeps", "dog"):
        (lists,) = after.search([query], 100)
        found, expected = lists["bm25"], anew.search(query, 100)
        assert sorted(found) == sorted(expected) and [hit.score for hit in found] == [hit.score for hit in expected]
        assert {hit.id for hit in lists["dense"]} == {each.id for each in anew._state[0].documents}
    assert "dog" in ids(before.search(["dog"], 5)[0]["bm25"])  # what is open goes on
    assert after.texts.find("yak:0").title == "Yak" and after.texts.find("dog:0") is None
    chosen = handover_source.chosen(run, "")
    handed = list(handover_source.documents(run, chosen, "float32", Metadata(None), ()).blocks())
    assert [id for block in handed for id in block.ids] == [each.id for each in after.texts]
    vectors = before.model.encode_documents(list(map(dataclasses.asdict, after.texts)))
    np.testing.assert_allclose(np.concatenate([block.vectors for block in handed]), vectors, atol=1e-5)


def test_what_has_changed_since_a_generation_is_handed_over(run, tmp_path):
    index = retrieval.load(run.folder).index(kind="exact")
    index.add([NEW])
    old = [each.id for each in index._state[0].documents]
    index.add([record("owl", "city"), {**NEW, "id": "elk"}])
    index.delete(["yak"])
    run.config.handover.update(to="vertex_json,bulk", since=1, out=str(tmp_path / "out"))
    handover.hand_over(run)
    there = {each.id for each in index._state[0].documents}
    gone = [id for id in old if id not in there]
    lines = [json.loads(line) for line in (tmp_path / "out" / "bulk" / "bulk-00000.ndjson").read_text().splitlines()]
    written = [line["index"]["_id"] for line in lines if "index" in line]
    assert written == sorted(id for id in there if id.startswith(("owl", "elk"))) and len(written) > 2
    assert [line["delete"]["_id"] for line in lines if "delete" in line] == gone and "yak:0" in gone
    vertex = tmp_path / "out" / "vertex_json"
    assert (vertex / "data" / "delete" / "ids.txt").read_text().splitlines() == gone
    points = [json.loads(line) for line in (vertex / "data" / "data-00000.json").read_text().splitlines()]
    assert [point["id"] for point in points] == written
    assert json.loads((vertex / "index.json").read_text())["isCompleteOverwrite"] is False
    for changes, message in (
        ({"to": "table"}, r"since=1: what goes to .* \('table'\) is a whole collection"),
        ({"since": 9}, r"generation 9 is not kept, of which there are 1, 2, 3"),
        ({"since": 3}, "since=3: nothing has changed since"),
        ({"to": "bulk", "dtype": "int8"}, "the scale of int8 is that of a whole collection"),
    ):
        run.config.handover.update(to="bulk", since=1, dtype="float32")
        run.config.handover.update(changes)
        with pytest.raises(UserError, match=message):
            handover.hand_over(run)


def test_in_python_a_runs_documents_come_and_go(run):
    index = retrieval.load(run.folder).index(kind="hybrid")
    before = [(hit.id, hit.score) for hit in index.search("the owl", 3)]
    told = index.add([NEW])
    assert told == (1, 0, 0, 0, 1) and index.search("yak mountains")[0].id == "yak:0" and index.generation == 1
    other = retrieval.load(run.folder).index(kind="hybrid")
    assert [hit.id for hit in other.search("yak mountains")] == [hit.id for hit in index.search("yak mountains")]
    assert index.add([NEW]).unchanged == 1 and index.delete(["yak"]).generation == 2
    assert "yak" not in ids(index.search("yak mountains", 500))
    assert [hit.score for hit in index.search("the owl", 3)] == pytest.approx([score for _, score in before])
    index.delete(list(NAMES))
    assert index.search("the owl") == [] and len(index) == 0
    assert OwnSearch(run, 10).search(["the owl"], 5)[0] == {"dense": [], "bm25": [], "hybrid": []}


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([NEW, NEW], "document 1: the id 'yak' is there twice; documents are replaced and deleted by their ids"),
        ([{"text": "No id here."}], "document 0: it has no 'id'"),
        (["A text."], "document 0: a record with an 'id' and a 'text' is needed, not 'A text.'"),
        ([NEW, {"id": "a", "text": " "}], "document 1: 'a' has no text: leave it out, or delete it where it was there"),
        ([{"id": "a", "text": "1"}], "document 0: 'a' has fewer than config.prepare.least_passage=4 tokens"),
        ([{"id": "a"}], "document 0: no field text, contents or body, but id"),
        (NEW, "a list of texts or records is needed, not dict"),
    ],
)
def test_mistakes_are_one_sentence_and_change_nothing(run, documents, message):
    index = retrieval.load(run.folder).index(kind="bm25")
    with pytest.raises(UserError, match=message):
        index.add(documents)
    assert not (run.folder / "segments" / "CURRENT").exists()


def test_what_cannot_be_deleted_is_said(run, tmp_path):
    index = retrieval.load(run.folder).index(kind="bm25")
    with pytest.raises(UserError, match="there is no document 'yak' to delete, so none was deleted"):
        index.delete(["owl", "yak"])
    with pytest.raises(UserError, match="delete takes a list of ids, which are texts, not 'owl'"):
        index.delete("owl")
    assert "owl" in ids(index.search("owl"))
    with pytest.raises(UserError, match="no document of which a passage could be made, so nothing was changed"):
        updated(run, write(tmp_path / "short.jsonl", [{"id": "a", "text": "1"}]))


def test_another_model_is_refused_when_it_searches(run):
    retrieval.load(run.folder).index(kind="bm25").add([NEW])
    record = records.record_of(run, "train")
    records.write_record(run, "train", record | {"outputs": {"checkpoints/manifest.json": "0"}})
    with pytest.raises(UserError, match="indexed with another model than the run has now: set it back, or make a run"):
        changing_documents.of_run(run, retrieval.load(run.folder).towers).opened()


def test_fewer_dimensions_are_refused_before_anything_changes(run):
    retrieval.load(run.folder).index(kind="bm25").add([NEW])
    shorter = retrieval.load(run.folder, truncate_dim=4)
    index = shorter.index(kind="bm25")
    assert index.search("yak mountains")[0].id == "yak:0"
    for call in (lambda: index.add([NEW | {"id": "elk"}]), lambda: shorter.index(kind="exact")):
        with pytest.raises(UserError, match=r"embeddings with dim 8, and the model and config\.encode have 4"):
            call()


def test_documents_in_memory_come_and_go(trained):
    model = retrieval.load(trained.folder)
    first = [{"id": "b", "text": "the red fox sleeps"}, {"id": "a", "text": "an owl sees at night"}]
    for kind in ("exact", "bm25", "hybrid", "quantised"):
        index = model.index(first, kind=kind)
        assert index.add([{"id": "c", "title": "Cats", "text": "a cat in winter"}, first[0]]) == (1, 0, 0, 1, 1)
        anew = model.index([*first[::-1], {"id": "c", "title": "Cats", "text": "a cat in winter"}], kind=kind)
        found, expected = index.search("cat at night", 3), anew.search("cat at night", 3)
        assert [hit.id for hit in found] == [hit.id for hit in expected] and found[0].id in "abc"
        np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in expected], rtol=1e-3)
        assert index.delete(["a", "b"]).deleted == 2 and ids(index.search("the cat owl", 9)) == ["c"]
    with pytest.raises(UserError, match="document 0: it has no 'id'"):
        index.add([{"text": "without"}])


def test_many_changes_are_merged_behind_them(trained):
    index = retrieval.load(trained.folder).index([{"id": "0", "text": "the red fox sleeps"}], kind="bm25")
    for number in range(1, 10):
        index.add([{"id": str(number), "text": f"an owl of winter {number}"}])
    for _ in range(500):
        if index.generation == 10:
            break
        time.sleep(0.01)
    assert index.generation == 10 and sorted(ids(index.search("owl fox", 20))) == [str(number) for number in range(10)]


def test_a_look_for_a_newer_index_reads_no_record_again(run, monkeypatch):
    """One of a corpus is long, and requests wait while it is parsed; a record that has changed is read."""
    read, read_record = [], records.read_record

    def counted(where, stage):
        read.append(stage)
        return read_record(where, stage)

    monkeypatch.setattr(serve, "_LOOK", 1000.0)
    current = serve.open_current(run)
    monkeypatch.setattr(records, "read_record", counted)
    assert not current.refresh() and "prepare" not in read
    os.utime(run.record("prepare"))
    assert not current.refresh() and "prepare" in read
    current.close()


def test_a_server_looks_through_no_loaded_module_for_garbage(run, monkeypatch):
    """That takes 0.3 s, in which nobody is answered. What it serves goes without it, once there is a newer."""
    pytest.importorskip("uvicorn", reason="launch/serve.lock is not installed")
    from retrieval.serving import server

    frozen = []
    monkeypatch.setattr(server, "run", lambda *_: frozen.append((gc.get_freeze_count(), len(gc.get_objects()))))
    serve.serve(run)
    ((kept, others),) = frozen
    assert kept > 100_000 and others < kept / 10

    current = serve.open_current(run)
    searched = current.service.search.__self__
    parts = [weakref.ref(part) for part in (searched, searched.texts, searched.model)]
    gc.disable()
    try:
        current.close()
        del current, searched
        for _ in range(500):  # a look may be under way
            if not any(part() for part in parts):
                break
            time.sleep(0.01)
        assert not any(part() for part in parts)
    finally:
        gc.enable()


def test_the_server_changes_documents_where_it_may(run, monkeypatch):
    pytest.importorskip("starlette", reason="launch/serve.lock is not installed")
    from starlette.testclient import TestClient

    from retrieval.serving import app
    from retrieval.serving.document_routes import Writer

    monkeypatch.setattr(serve, "_LOOK", 1000.0)  # nobody waits for the next look
    current = serve.open_current(run)
    writer = Writer(lambda: current.service.documents, current.refresh)
    limits = serve.limits(run)
    asked = TestClient(app.make_app(lambda: current.service, limits, (), writer=writer), raise_server_exceptions=False)
    model, query = current.service.model, {"query": "yak mountains", "systems": ["bm25"]}
    assert asked.post("/api/search", json=query).json()["generation"] == 0
    answer = asked.post("/api/documents", json={"documents": [NEW | {"id": "a/b yak.md"}]})
    assert answer.json() == {"added": 1, "replaced": 0, "deleted": 0, "unchanged": 0, "generation": 1}
    found = asked.post("/api/search", json=query).json()
    assert found["generation"] == 1 and found["systems"]["bm25"][0]["id"] == "a/b yak.md:0"
    assert current.service.model is model and asked.get("/api/health").json()["generation"] == 1
    answer = asked.delete("/api/documents/a/b%20yak.md")
    assert answer.json()["deleted"] == 1 and answer.json()["generation"] == 2
    assert asked.post("/api/search", json=query).json()["systems"]["bm25"] == []
    gone = asked.delete("/api/documents/a/b%20yak.md")
    assert gone.status_code == 404 and "there is no document 'a/b yak.md' to delete" in gone.json()["error"]
    for body, message in (
        ({"documents": ["a text"]}, "document 0: a record with an 'id'"),
        ({"documents": [NEW, NEW]}, "the id 'yak' is there twice"),
        ({"documents": [{"id": "x", "text": ""}]}, "'documents[0].text' is missing or no text"),
        ({"documents": []}, "a list of at least one"),
    ):
        refused = asked.post("/api/documents", json=body)
        assert refused.status_code == 400 and message in refused.json()["error"]
    described = asked.get("/openapi.json").json()["paths"]
    assert set(described["/api/documents/{id}"]) == {"delete"} and set(described["/api/documents"]) == {"post"}
    reads = TestClient(app.make_app(lambda: current.service, limits, ()), raise_server_exceptions=False)
    assert reads.post("/api/documents", json={"documents": [NEW]}).status_code == 404
    current.close()


def test_the_stage_says_what_it_needs(run, tmp_path):
    with pytest.raises(UserError, match="--stage=update needs --update=FOLDER"):
        update.check_path(run)
    with pytest.raises(UserError, match=r"nothing\.jsonl: no such file or folder"):
        update.check_path(dataclasses.replace(run, asked=Asked(update=str(tmp_path / "nothing.jsonl"))))
