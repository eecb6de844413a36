"""The recipe 'splade' and the stage `sparse`: from labelled pairs to lists beside those of BM25."""

import json
import shutil

import numpy as np
import pytest
from support import tiny

from retrieval import files
from retrieval.errors import UserError
from retrieval.methods.splade import folder as splade_folder
from retrieval.methods.splade import stage
from retrieval.methods.splade.trained import SPARSE_MODELS
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
    with pytest.raises(UserError, match="a model of two towers; name the work directory of a splade"):
        SPARSE_MODELS.check(run, "", stage.MODEL)


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


def test_a_folder_gives_the_lists_of_the_run_that_wrote_it(inputs, trained, tmp_path):
    """What `export` writes is read by `sparse.model`, in a run that trains nothing; so is the work directory."""
    tiny.execute(trained, "export")
    wanted = np.load(trained.folder / "searched" / "sparse" / "reqa.npz")
    for number, model in enumerate((trained.folder / "export", trained.folder)):
        run = make_run(inputs, tmp_path / str(number), **{"sparse.model": str(model), "split.set": ""})
        run.config.stages = ("sets", "sparse", "evaluate")
        preflight.check(run, run.config.stages)
        tiny.execute(run)
        found = np.load(run.folder / "searched" / "sparse" / "reqa.npz")
        assert found["scores"].shape[1] == wanted["scores"].shape[1] and len(found["rows"]) >= len(wanted["rows"])
        assert (found["rows"] >= 0).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling_strategy": "sum"}, "pooling_strategy is 'sum'"),
        ({"activation_function": "log1p_relu"}, "activation_function is 'log1p_relu'"),
    ],
)
def test_other_folders_are_refused(trained, tmp_path, change, message):
    if not (trained.folder / "export").exists():
        tiny.execute(trained, "export")
    folder = tmp_path / "model"
    shutil.copytree(trained.folder / "export", folder)
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(change))
    for sums in folder.glob("*sum*"):
        sums.unlink()
    with pytest.raises(UserError, match=message):
        splade_folder.check(folder)
    (folder / "modules.json").unlink()
    with pytest.raises(UserError, match=r"no modules\.json"):
        splade_folder.check(folder)
