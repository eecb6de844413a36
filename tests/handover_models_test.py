"""Exported towers in the programs of others: ONNX Runtime gives our numbers, and finds our documents."""

import numpy as np
import pytest
from support import exported
from support.packages import package

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.set_format import SETS, Given
from retrieval.export import onnx_files
from retrieval.export.onnx_files import INPUTS, arrays
from retrieval.recipes.towers import candidate_windows, query_tokens

onnx, runtime = package("onnx"), package("onnxruntime")
ir_datasets = package("ir_datasets")

RNG = np.random.default_rng(0)
WORDS = ["fox", "the", "sep", "dog", *"abcdefgh"]
DOCUMENTS = [
    Candidate(str(n), "fox the" if n % 3 == 0 else "", " ".join(RNG.choice(WORDS, size)))
    for n, size in enumerate([1, 2, 14, 38, 60, *RNG.integers(3, 38, 55)])
]
QUERIES = [" ".join(RNG.choice(WORDS, size)) for size in (1, 3, 12, 5, 9)]
MODELS = {
    "bert": {"model.embed_norm": True, "model.tied": True},
    "untied": {
        "model.tied": False,
        "model.pooling": "cls",
        "model.truncate_dim": 5,
        "data.query_prefix": "the fox: ",
        "data.document_prefix": "a dog: ",
    },
    "modernbert": {"model.family": "modernbert", "model.num_layers": 4, "model.tied": True},
    "qwen3": {"model.family": "qwen3", "model.tied": True, "model.pooling": "last", "data.titles": "joined"},
    "gemma": {"model.family": "gemma3_text", "model.tied": True, "data.titles": "joined"},
}


def work_directory(path, **changes):
    run = exported.work_directory(path, **{"model.normalize": True} | changes)
    lines = "".join(f'{{"_id": "{each.id}", "title": "{each.title}", "text": "{each.text}"}}\n' for each in DOCUMENTS)
    files.write_text(run.corpus / "passages-00000.jsonl", lines)
    return run


def session(folder, name):
    path = folder / "onnx" / f"{name}.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    return runtime.InferenceSession(path)


def embed(model, rows, batch):
    """In batches, of which each is padded to its longest text."""
    found = []
    for start in range(0, len(rows), batch):
        given = [x.astype(np.int64) for x in arrays(rows[start : start + batch])]
        found.append(model.run(None, dict(zip(INPUTS, given)))[0])
    return np.concatenate(found)


@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_gives_our_embeddings_and_our_top_ten(name, tmp_path, caplog):
    run = work_directory(tmp_path / "run", **MODELS[name], **{"export.onnx": True})
    folder, vocabulary = exported.export(run), run.load_vocabulary()
    assert not [record for record in caplog.records if record.exc_info], "packages that nobody asked for are missing"
    queries_QE, documents_NE = exported.embed(run, QUERIES, DOCUMENTS)
    names = ("query", "document") if name == "untied" else ("model", "model")
    query_model, document_model = (session(folder, each) for each in names)
    rows = [row for (row,) in candidate_windows(run.config, vocabulary, DOCUMENTS)]
    assert {len(row) for row in rows} >= {40} and min(map(len, rows)) < 9
    for batch in (1, 5, len(rows)):
        theirs_NE = embed(document_model, rows, batch)
        assert np.abs(theirs_NE - documents_NE).max() < 1e-5
    theirs_QE = embed(query_model, query_tokens(run.config, vocabulary, QUERIES), 2)
    assert np.abs(theirs_QE - queries_QE).max() < 1e-5
    assert top_ten(theirs_QE @ theirs_NE.T) == top_ten(queries_QE @ documents_NE.T)
    record = files.read_json(folder / "onnx" / "config.json")
    assert record["dimensions"] == documents_NE.shape[1] and record["normalized"]
    given = dict(zip(INPUTS, (x.astype(np.int64) for x in arrays(rows[:8]))))
    assert document_model.run(None, given)[1].shape == (*given["input_ids"].shape, run.config.model.hidden_size)
    if name == "untied":
        assert record["towers"]["query.onnx"] == {"query": {"prefix": "the fox: ", "length": 16}}


def top_ten(scores):
    return np.argsort(-scores, axis=1, kind="stable")[:, :10].tolist()


def test_large_parameters_lie_beside(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_files, "_MOST", 100)
    run = work_directory(tmp_path / "run", **{"model.tied": True, "model.num_layers": 1, "export.onnx": True})
    folder = exported.export(run)
    assert (folder / "onnx" / "model.onnx_data").stat().st_size > 1000
    rows = [row for (row,) in candidate_windows(run.config, run.load_vocabulary(), DOCUMENTS)]
    _, documents_NE = exported.embed(run, QUERIES, DOCUMENTS)
    assert np.abs(embed(session(folder, "model"), rows, 8) - documents_NE).max() < 1e-5


def test_data_sets_of_ir_datasets_are_evaluation_sets_and_training_judgements(tmp_path):
    documents = [("d1", "the fox is here"), ("d2", "a dog is there"), ("d3", "sep"), ("d4", " ")]
    queries = [("q1", "the fox"), ("q2", "a dog"), ("q3", "nobody judged")]
    for name, rows in (("docs", documents), ("queries", queries)):
        (tmp_path / name).write_text("".join(f"{id}\t{text}\n" for id, text in rows))
    whole = ir_datasets.create_dataset(docs_tsv=str(tmp_path / "docs"), queries_tsv=str(tmp_path / "queries"))
    ir_datasets.registry.register("tiny", whole)
    for name, lines in (("train", "q1 0 d1 1\n"), ("test", "q2 0 d2 2\nq2 0 d1 0\nq1 0 d1 1\nq1 0 d4 1\n")):
        (tmp_path / name).write_text(lines)
        judged = ir_datasets.create_dataset(qrels_trec=str(tmp_path / name))
        ir_datasets.registry.register(f"tiny/{name}", ir_datasets.datasets.base.Dataset(whole, judged))
    ir, value, options = SETS["ir"], "ir:tiny/train,tiny/test", {"sets.unknown": "refuse"}
    ir.check(value, options, False)
    assert ir.names(value) == ["tiny"] and ir.inputs(value, options) == []
    (found,) = ir.read(value, Given(options, tmp_path, tmp_path))
    assert list(found.candidates) == [Candidate(id, "", text) for id, text in documents[:3]]
    assert found.queries == {"q1": "the fox", "q2": "a dog"}
    assert found.qrels == {"train": {"q1": {"d1": 1}}, "test": {"q2": {"d2": 2, "d1": 0}, "q1": {"d1": 1}}}
    assert list(found.left_out.values()) == [1, 1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("ir:nowhere/at-all", "ir:nowhere/at-all: ir_datasets knows no such data set; https"),
        ("ir:beir/scifact", "ir:beir/scifact: no qrels in ir_datasets; name a part of it that has"),
    ],
)
def test_a_name_that_has_no_judgements_is_refused(value, message):
    with pytest.raises(UserError, match=message):
        SETS["ir"].check(value, {}, False)
