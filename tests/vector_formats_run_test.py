"""The stage `handover` of a run: its passages, its evaluation set, windows, and what is refused."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from pyarrow import parquet
from support.handed_over import questions, verify
from support.tiny import CHEAP, execute, make_run

from retrieval.common.errors import UserError
from retrieval.data.sets import beir
from retrieval.runs.pipeline import preflight, records
from retrieval.search import sharded_map
from retrieval.search.encoding import StoredRows, load_ids
from retrieval.stages import handover


@pytest.fixture(scope="module")
def encoded(inputs, prepared, tmp_path_factory):
    """Towers of 8 dimensions after two steps, and what they make of the corpus and of its questions."""
    folder = shutil.copytree(prepared, tmp_path_factory.mktemp("encoded") / "run")
    changes = {**CHEAP, "train.steps": 2, "encode.untrained": False, "data.document_prefix": "passage: "}
    changes["data.document_length"] = 32  # shorter than some passages
    run = make_run("ict_bfs_wlp", inputs, folder, **changes)
    execute(run, "train", "encode")
    return run


def handed(run, *targets, **fields):
    """Does the stage, and returns the folder of the first target."""
    config = run.config.copy_and_resolve_references()
    config.handover.update(to=",".join(targets), **fields)
    run = dataclasses.replace(run, config=config)
    preflight.check(run, ["handover"])
    execute(run, "handover")
    for name in targets:
        verify(run.folder / "handover" / name)
    return run.folder / "handover" / targets[0]


def table_of(folder, name="vectors"):
    return parquet.read_table(folder / name)


def test_the_corpus_is_handed_over(encoded):
    folder = handed(encoded, "table", "vertex")
    table, stored = table_of(folder), encoded.embeddings("corpus", "trained")
    passages = [passage for path in encoded.passages for passage in beir.read_candidates(path)]
    rows = StoredRows(stored, "candidates")[:]
    assert table["id"].to_pylist() == [passage.id for passage in passages] == load_ids(stored, "candidates")
    assert table["text"].to_pylist() == [passage.text for passage in passages]
    vectors = table["vector"].combine_chunks().flatten().to_numpy()
    assert vectors.tobytes() == rows.tobytes() and len(passages) > 50
    metadata = list(map(json.loads, table["metadata"].to_pylist()))
    assert [of["document"] for of in metadata] == [passage.id.rpartition(":")[0] for passage in passages]
    said = json.loads((folder / "vectors.json").read_text())
    assert said["prompt"] == "passage: " and said["model"].startswith("sha256:")
    for vector, expected, _ in questions(folder):
        best = np.argsort(-(rows @ np.array(vector, np.float32)), kind="stable")[:10]
        assert set(expected) == {passages[row].id for row in best}
    told = records.record_of(encoded, "handover")["details"]
    assert told["collection"] == "corpus" and told["table"]["rows"] == told["vertex"]["rows"] == len(passages)


def test_a_set_is_handed_over_with_its_queries(encoded):
    folder = handed(encoded, "table", collection="reqa")
    queries = beir.read_queries(encoded.sets / "reqa" / "queries.jsonl")
    table = table_of(folder, "queries")
    assert table["id"].to_pylist() == list(queries) and table["text"].to_pylist() == list(queries.values())
    stored = StoredRows(encoded.embeddings("reqa", "trained"), "queries")[:]
    assert table["vector"].combine_chunks().flatten().to_numpy().tobytes() == stored.tobytes()
    asked = [line for line in (folder / "check.jsonl").read_text(encoding="utf-8").split("\n") if line]
    assert [json.loads(line)["query"] for line in asked] == list(queries.values())[:50]


def test_it_runs_again_with_the_same_bytes(encoded):
    folder = handed(encoded, "vertex")
    before = (folder / "manifest.json").read_bytes()
    assert handed(encoded, "vertex") == folder and (folder / "manifest.json").read_bytes() == before
    assert (folder.parent / "table").exists()  # of the other hand-overs


def test_each_window_has_an_id_of_its_own(encoded, inputs, tmp_path):
    changes = {**CHEAP, "base": str(encoded.folder), "encode.windows": 2, "stages": ("encode",)}
    run = make_run("ict_bfs_wlp", inputs, tmp_path / "run", **changes | {"encode.untrained": False, "corpus": ""})
    execute(run)
    folder = handed(run, "table", "vertex")
    ids = load_ids(run.embeddings("corpus", "trained"), "candidates")
    rows = list(zip(*(table_of(folder)[name].to_pylist() for name in ("id", "metadata"))))
    assert len(set(ids)) < len(ids) == len(rows) == len({id for id, _ in rows})
    assert [json.loads(metadata)["parent"] for _, metadata in rows] == ids
    assert {id.removeprefix(parent) for parent, (id, _) in zip(ids, rows)} == {"#0", "#1"}
    lines = (folder.parent / "vertex" / "data" / "data-00000.json").read_text(encoding="utf-8").split("\n")[:-1]
    assert [json.loads(line)["crowding_tag"] for line in lines] == ids


def test_embeddings_of_other_texts_are_refused(encoded, tmp_path):
    run = dataclasses.replace(encoded, folder=shutil.copytree(encoded.folder, tmp_path / "run"))
    path = run.passages[0]
    first, second, *others = path.read_text(encoding="utf-8").splitlines(keepends=True)
    fewer = "480 passages are embedded, and there are 479 now"
    for changed, message in ((second + first, "passage 1 is"), (first, fewer)):
        path.write_text(changed + "".join(others), encoding="utf-8")
        with pytest.raises(UserError, match=message):
            handover.hand_over(run)
    ids = next(run.embeddings("corpus", "trained").glob("candidates-*.ids.json"))
    first, second, _, *others = json.loads(ids.read_text(encoding="utf-8"))
    ids.write_text(json.dumps([first, second, first, *others]), encoding="utf-8")
    sharded_map.seal(ids.with_name(ids.name.replace(".ids.json", ".npy")))
    with pytest.raises(UserError, match=f"two passages have the id '{first}'"):
        handover.hand_over(run)


@pytest.mark.parametrize(
    ("targets", "fields", "message"),
    (
        (("tabel",), {}, "unknown target in config.handover.to 'tabel': did you mean table"),
        ((), {}, "name one or more of table, vertex"),
        (("table", "table"), {}, "each once"),
        (("table",), {"collection": "rega"}, "name one that .* has embeddings of: reqa, corpus"),
    ),
)
def test_bad_input(encoded, targets, fields, message):
    with pytest.raises(UserError, match=message):
        handed(encoded, *targets, **fields)
