"""The recipe 'splade' and the stage `sparse`: from labelled pairs to lists beside those of BM25."""

import json

import numpy as np
import pytest
from support import tiny

from retrieval import files
from retrieval.errors import UserError
from retrieval.methods.splade import stage
from retrieval.pipeline import preflight

CHANGES = {
    "stages": ("prepare", "sets", "pairs", "train", "sparse", "index", "evaluate", "report"),
    "split.set": "reqa",
    "split.ratio": 0.9,
    "split.validation": 0.1,
    "split.shards": 2,
    "train.steps": 8,
    "train.batch_size": 8,
    "train.chunk_size": 8,
    "train.learning_rate": 3e-3,
    "loop.checkpoint_every": 4,
    "loop.validate_every": 4,
    "sparse.shard_size": 20,
    "encode.corpus": False,
}


def make_run(inputs, folder, **changes):
    return tiny.make_run("splade", inputs, folder, **{**CHANGES, **changes})


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    run = make_run(inputs, tmp_path_factory.mktemp("splade") / "run")
    preflight.check(run, run.config.stages)
    tiny.execute(run)
    return run


def test_its_lists_stand_beside_bm25s(trained):
    rows = files.read_json(trained.folder / "results.json")
    assert {row["system"] for row in rows} == {"bm25", "splade"}
    report = (trained.folder / "report.md").read_text()
    assert "splade" in report


def test_vectors_and_lists_are_written(trained):
    weights = stage.load(sorted((trained.folder / "sparse" / "reqa").glob("*.npz"))).toarray()
    assert weights.min() >= 0 and len(weights) > 20
    with np.load(trained.folder / "searched" / "sparse" / "reqa.npz") as lists:
        scores, rows, facts = lists["scores"], lists["rows"], json.loads(str(lists["facts"]))
    assert facts["system"] == "splade" and facts["notes"]["terms of a passage"] > 0
    found = rows[:, 1:] >= 0
    assert found.any() and (scores[:, :-1] >= scores[:, 1:])[found].all()


def test_what_a_kill_left_is_gone_on_with(trained):
    """Shards that are there stay, and the others become the same bytes."""
    folder = trained.folder / "sparse" / "reqa"
    before = {path.name: path.read_bytes() for path in folder.glob("*.npz")}
    with np.load(trained.folder / "searched" / "sparse" / "reqa.npz") as lists:
        scores = lists["scores"]
    assert len(before) > 1
    sorted(folder.glob("*.npz"))[1].unlink()
    stage.search_sparse(trained)
    assert {path.name: path.read_bytes() for path in folder.glob("*.npz")} == before
    with np.load(trained.folder / "searched" / "sparse" / "reqa.npz") as again:
        np.testing.assert_array_equal(again["scores"], scores)


def test_another_kind_of_model_is_refused(inputs, tmp_path):
    run = make_run(inputs, tmp_path / "run", recipe="two_tower")
    with pytest.raises(UserError, match="needs a model of sparse vectors"):
        stage.check_model(run)


def test_packed_rows_are_refused(inputs, tmp_path):
    run = make_run(inputs, tmp_path / "run", **{"data.pack.query": 0.5, "data.pack.document": 0.5})
    with pytest.raises(UserError, match="takes a text a row"):
        preflight.check(run, run.config.stages)


def test_queries_without_an_encoder(inputs, trained, tmp_path):
    """Their weights come from the labelled pairs, and are trained."""
    run = make_run(
        inputs,
        tmp_path / "run",
        **{"model.sparse_queries": "idf", "base": str(trained.folder), "loop.validate_every": 0},
    )
    run.config.stages = ("train", "sparse", "evaluate")
    tiny.execute(run)
    with np.load(run.folder / "searched" / "sparse" / "reqa.npz") as lists:
        assert json.loads(str(lists["facts"]))["notes"]["terms of a query"] > 3
