"""Models come from Hugging Face's hub: `hf:NAME`. A server on this machine stands for it."""

from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from safetensors import numpy
from support import toy_hub

import retrieval
from configs import ict
from retrieval.common.errors import UserError, hub_hint
from retrieval.common.runtime import hub
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.methods.reranker.trained import RERANKERS
from retrieval.methods.writer.stage import check_published
from retrieval.recipes.parameters import parameters_of
from retrieval.recipes.recipe import build_model
from retrieval.runs.pipeline import preflight
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import initial_parameters

GOLDEN = REPOSITORY / "tests" / "golden" / "bert"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    WordPiece([*SPECIAL_TOKENS, *(f"w{number}" for number in range(45))]).save(path)
    bert = {file.name: file.read_bytes() for file in (*GOLDEN.iterdir(), path)}
    classifier = {"classifier.weight": np.ones((1, 16), np.float32), "classifier.bias": np.ones(1, np.float32)}
    reranker = {"model.safetensors": numpy.save(numpy.load(bert["model.safetensors"]) | classifier)}
    return {
        "me/bert": bert | {"onnx/model.onnx": b"a copy"},
        "me/reranker": bert | reranker,
        "me/t5": {"config.json": b"{}", "model.safetensors": b""},
    }


@pytest.fixture
def served(models, tmp_path, monkeypatch):
    with toy_hub.served(dict(models), tmp_path / "cache", monkeypatch) as server:
        yield server


def make_run(folder, start):
    config = ict.get_config("local")
    config.model.update(num_layers=2, hidden_size=16, num_heads=4, mlp_size=24, embed_dim=6, tied=False)
    config.data.update(query_length=10, document_length=20)
    config.train.init_from = config.vocab = start
    return Run(config, folder / "run", REPOSITORY / "requirements.lock")


def started(run):
    model = build_model(run.config, 50)
    initial_parameters.start_of(run.config).check(run)
    initial_parameters.start_of(run.config).init(model, run.config, 50)
    return jax.tree.leaves(parameters_of(model))


def test_a_run_starts_from_a_model_of_the_hub(served, models, tmp_path):
    run = make_run(tmp_path, "hf:me/bert@main")
    files = {path.name: path for path in initial_parameters.start_of(run.config).inputs(run)}
    assert {"config.json", "model.safetensors", "vocab.txt"} <= files.keys()  # whose sums the record keeps
    assert all(path.read_bytes() == models["me/bert"][name] for name, path in files.items())
    assert all(tmp_path / "cache" in path.parents for path in files.values())
    ours, plain = started(run), started(make_run(tmp_path, str(files["vocab.txt"].parent)))
    assert all(np.array_equal(one, other) for one, other in zip(ours, plain, strict=True))
    assert not [path for _, path in served.asked if "onnx" in path]
    assert len([path for _, path in served.asked if path.endswith("revision/main")]) == 1


def test_without_a_network_the_cache_does(models, tmp_path, monkeypatch):
    with toy_hub.served(dict(models), tmp_path / "cache", monkeypatch):
        here = hub.local("hf:me/bert")
    assert hub.local("hf:me/bert") == here and started(make_run(tmp_path, "hf:me/bert"))
    with pytest.raises(UserError, match="hf:me/other: the hub does not answer, and the cache has no such model"):
        hub.local("hf:me/other")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:me/none", "hf:me/none: the hub has no such model, or it is private"),
        ("hf:me/bert@missing", "hf:me/bert@missing: the model has no such revision"),
        ("hf:me/no name", "hf:me/no name: no name of a model; write hf:OWNER/NAME"),
        ("hf:me/t5", "hf:me/t5: its config is not that of an encoder"),
    ],
)
def test_a_name_that_cannot_be_is_one_sentence(served, tmp_path, name, message):
    run = make_run(tmp_path, "")
    run.config.train.init_from, run.config.stages = name, ("prepare", "train")
    with pytest.raises(UserError, match=message) as refused:
        preflight.check(run, run.config.stages)
    assert "\n" not in str(refused.value) and not run.folder.exists()


def test_a_cross_encoder_of_the_hub_is_a_reranker(served, tmp_path):
    run = make_run(tmp_path, "")
    RERANKERS.check(run, "hf:me/reranker", "config.rerank.model")
    names = {path.name for path in RERANKERS.inputs(run, "hf:me/reranker", "config.rerank.model")}
    assert {"config.json", "model.safetensors", "vocab.txt"} <= names
    with pytest.raises(UserError, match=r"config\.rerank\.model=hf:me/t5: no reranker there"):
        RERANKERS.check(run, "hf:me/t5", "config.rerank.model")


def test_the_name_of_a_model_gets_the_hint_to_its_prefix(tmp_path):
    with pytest.raises(UserError, match=r"config\.rerank\.model=me/bert: no reranker there.* is written hf:me/bert$"):
        RERANKERS.check(make_run(tmp_path, ""), "me/bert", "config.rerank.model")
    with pytest.raises(UserError, match=r"config\.generate\.model=t5-base: no encoder-decoder .* written hf:t5-base$"):
        check_published(Path("t5-base"))
    with pytest.raises(UserError, match=r"me/bert: neither a work directory.* is written hf:me/bert$"):
        retrieval.load("me/bert")
    for value in (str(tmp_path), f"{tmp_path}/none", "lists/vocab.txt", "runs/a/b", "", "../model"):
        assert hub_hint(value) == ""
