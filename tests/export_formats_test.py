"""Forms of exported towers that need no package of others; `handover_models_test` has the rest."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import exported
from support.exported import VOCABULARY

import retrieval
from retrieval import files
from retrieval.errors import UserError
from retrieval.export import static_model, tower_function
from retrieval.export.tower_folders import TrainedTowers
from retrieval.stages import export as stage

pytestmark = pytest.mark.usefixtures("one_device")
TEXTS = ["the fox", "a dog, the dog", "sep"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    changes = {"model.tied": False, "model.normalize": True, "model.dtype": "bfloat16"}
    run = exported.work_directory(tmp_path_factory.mktemp("formats") / "run", **changes)
    run.config.export.formats = ("stablehlo", "static")
    lines = "".join(f'{{"_id": "{n}", "title": "fox", "text": "{text}"}}\n' for n, text in enumerate(TEXTS))
    files.write_text(run.corpus / "passages-00000.jsonl", lines)
    return run


@pytest.fixture(scope="module")
def folder(run):
    return exported.export(run)


ALONE = """
import sys
import jax, numpy as np
from pathlib import Path
import jax.export
folder, arrays = Path(sys.argv[1]), np.load(sys.argv[2])
given = [arrays[name] for name in ("input_ids", "attention_mask", "position_ids")]
for name in ("query", "document"):
    program = jax.export.deserialize((folder / f"{name}.cpu.stablehlo").read_bytes())
    assert program.platforms == ("cpu",)
    for rows in (8, 1):
        embedding, states = program.call(*(x[:rows] for x in given))
        np.testing.assert_array_equal(embedding, arrays[f"{name}{rows}"])
other = jax.export.deserialize((folder / "query.accelerator.stablehlo").read_bytes())
assert other.platforms == ("cuda", "tpu"), other.platforms
try:
    program.call(*(np.zeros((1, 4000), np.int32),) * 3)
except ValueError:
    pass
else:
    raise AssertionError("a text of more tokens than there are positions")
assert not any(name.startswith("retrieval") for name in sys.modules)
"""


def test_another_process_runs_stablehlo_without_this_package(run, folder, tmp_path):
    trained = TrainedTowers.of(run)
    given = tower_function.example(trained, 16)
    towers = {tower.name: tower for tower in tower_function.of(trained)}
    # A single text has a program of its own: the processor adds up in another order there.
    ours = {
        f"{name}{rows}": jax.jit(tower.embed)(*(x[:rows] for x in given))[0]
        for name, tower in towers.items()
        for rows in (8, 1)
    }
    np.savez(tmp_path / "arrays.npz", **dict(zip(tower_function.INPUTS, given)), **ours)
    program = [sys.executable, "-c", ALONE, str(folder / "stablehlo"), str(tmp_path / "arrays.npz")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_card_names_the_other_forms(folder):
    assert "Other forms lie in `stablehlo`, `static`." in (folder / "README.md").read_text()


def test_a_function_gives_the_embeddings_of_the_export(run, folder):
    model = retrieval.load(folder)
    towers = {tower.name: tower for tower in tower_function.of(TrainedTowers.of(run))}
    rows = [VOCABULARY.single(VOCABULARY.encode(text), 40) for text in TEXTS]
    given = tower_function.arrays(rows)
    for name, encode in (("query", model.encode_queries), ("document", model.encode_documents)):
        np.testing.assert_allclose(towers[name].embed(*given)[0], encode(TEXTS), atol=1e-5)


def test_a_static_model_has_the_components_of_each_tokens_own_embedding(run, folder):
    table = load_file(folder / "static" / "model.safetensors")["embeddings"]
    assert table.dtype == np.float16 and table.shape == (len(VOCABULARY), 8)
    fox = VOCABULARY.tokens.index("fox")
    vectors = static_model.token_vectors(TrainedTowers.of(run))
    alone = retrieval.load(folder).encode_documents(["fox"])
    np.testing.assert_allclose(vectors[fox], alone[0], atol=1e-5)
    # By numpy's own decomposition; counts by hand.
    centred = vectors - vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    ids = [id for text in TEXTS for id in VOCABULARY.encode(f"fox {text}")]
    share = (np.bincount(ids, minlength=len(VOCABULARY)) + 1) / (len(ids) + len(VOCABULARY))
    expected = (centred @ axes.T) * (1e-4 / (1e-4 + share))[:, None]
    np.testing.assert_allclose(np.abs(table), np.abs(expected), rtol=5e-3, atol=1e-6)
    assert share[fox] == max(share)
    small = static_model.reduced(vectors, 3)
    np.testing.assert_allclose(np.abs(small), np.abs(centred @ axes.T)[:, :3], atol=1e-5)
    config = files.read_json(folder / "static" / "config.json")
    assert config["model_type"] == "model2vec" and config["normalize"] and config["hidden_dim"] == 8
    with pytest.raises(UserError, match="a vector for each token, and no encoder; model2vec and"):
        retrieval.load(folder / "static")


def test_what_cannot_be_written_is_refused_in_a_sentence(run, tmp_path, monkeypatch):
    def refused(formats, message, **changes):
        other = exported.work_directory(tmp_path / str(len(list(tmp_path.iterdir()))), **changes)
        other.config.export.formats = formats
        with pytest.raises(UserError, match=message):
            stage.check(other)
            exported.export(other)

    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    refused(
        ("onnx",),
        r"needs the package .*onnx.*, which is not installed: pip install '\.\[onnx\]' && pip install --no-deps",
    )
    refused(("stablehlo",), "of the family mpnet has a bias by distance", **{"model.family": "mpnet"})
    refused(("static",), "the run has no passages: name a corpus, or a set in config.sets")
