"""Runs that train adapters on a published model: checkpoints, going on, what comes after, and another base."""

import dataclasses
import functools
import hashlib
import json
import os
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import exported, run_results
from support.tiny import execute
from support.tuned import tuned

import retrieval
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.common.runtime.signals import PreemptedError
from retrieval.config import experiment
from retrieval.models import peft_folder, tensor_files
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import abstract_model
from retrieval.runs.pipeline import records, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import adapters, initial_parameters, train_state, trained_run
from retrieval.search import encoding
from retrieval.stages import train

LORA = {"train.lora.rank": 2, "train.lora.targets": ("all",), "train.lora.dropout": 0.1, "train.learning_rate": 0.05}
LORA |= {"loop.validate_every": 0, "train.warmup_ratio": 0.0}  # the last step is the result


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of sentence-transformers that is stored in bfloat16."""
    place = tmp_path_factory.mktemp("models")
    changes = {"model.embed_dim": 8, "model.pooling": "mean"}
    folder = shutil.copytree(exported.export(exported.work_directory(place / "trained", **changes)), place / "model")
    (folder / model_folder.SUMS).unlink()
    return in_bfloat16(folder)


def in_bfloat16(folder):
    path = folder / "model.safetensors"
    save_file({name: tensor.astype("bfloat16") for name, tensor in load_file(path).items()}, path)
    return folder


def adapted(model, folder, **changes):
    pairs = [{"query": f"where is {n}?", "positives": [f"the fox {n}"]} for n in range(60)]
    for name, part in (("pairs", pairs[:40]), ("test", pairs[40:])):
        files.write_text(folder.with_name(f"{name}.jsonl"), "".join(json.dumps(pair) + "\n" for pair in part))
    sources = {
        "pairs.files": str(folder.with_name("pairs.jsonl")),
        "sets.labelled": str(folder.with_name("test.jsonl")),
    }
    return tuned(model, folder, **LORA | sources | changes)


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    run = adapted(model, tmp_path_factory.mktemp("run") / "run")
    runner.run_stage(run, "export")
    return run


def copied(run, folder, stages=("train",)):
    """The run in another folder, with the named stages still to be done."""
    run = Run(run.config.copy_and_resolve_references(), shutil.copytree(run.folder, folder), run.lock)
    for stage in stages:
        run.own_record(stage).unlink()
    return run


def test_a_checkpoint_has_adapters_and_heads_alone(finished):
    import orbax.checkpoint as ocp

    state = ocp.StandardCheckpointer().restore(finished.folder / "checkpoints" / "4" / "state")
    names = {"/".join(str(key.key) for key in path) for path, _ in jax.tree.leaves_with_path(state["params"])}
    modules = ("attention/query", "attention/key", "attention/value", "attention/output", "mlp_in", "mlp_out")
    adapters = {f"query_tower/encoder/layers/{name}/lora_{side}" for name in modules for side in "ab"}
    assert names == adapters | {"query_tower/projection/kernel", "query_tower/projection/bias"}
    moments = [leaf for leaf in jax.tree.leaves(state["opt_state"]) if np.ndim(leaf)]
    assert len(moments) == 2 * len(names) and all(np.any(leaf) for leaf in moments)


def test_the_base_is_the_published_bits_after_training(finished, model):
    _, params = trained_run.load_adapted(finished.folder, finished.vocab_size, finished.config.mesh, 4)
    encoder, tensors = params["query_tower"]["encoder"], load_file(model / "model.safetensors")
    assert encoder["layers"]["mlp_in"]["kernel"].dtype == encoder["token_embedding"]["embedding"].dtype == "bfloat16"
    for number in range(2):
        theirs = tensors[f"encoder.layer.{number}.intermediate.dense.weight"]
        np.testing.assert_array_equal(encoder["layers"]["mlp_in"]["kernel"][number], theirs.T)
        assert np.abs(encoder["layers"]["mlp_in"]["lora_b"][number]).max() > 0.01


def test_it_is_encoded_exported_and_loaded_merged(finished):
    found, ids = encoding.load(finished.embeddings("test", "trained"), "candidates")
    candidates = {line["_id"]: line["text"] for line in map(json.loads, (finished.sets / "test/corpus.jsonl").open())}
    texts = [candidates[id] for id in ids]
    for place in (finished.folder, finished.folder / "export"):
        assert np.allclose(retrieval.load(place).encode_document(texts), found, atol=1e-5)
    start, _ = encoding.load(finished.embeddings("test", "start"), "candidates")
    assert np.abs(start - found).max() > 0.01


@pytest.mark.long
def test_a_killed_run_ends_with_the_same_bits(finished, tmp_path, monkeypatch):
    run = copied(finished, tmp_path / "run")
    shutil.rmtree(run.folder / "checkpoints")
    do = train.loop.train
    with monkeypatch.context() as patch, pytest.raises(PreemptedError):
        patch.setattr(train.loop, "train", functools.partial(_stopped, do))
        execute(run, "train")
    execute(run, "train")
    jax.tree.map(np.testing.assert_array_equal, run_results.state(run.folder), run_results.state(finished.folder))


def _stopped(do, *args):
    return do(*args[:-1], dataclasses.replace(args[-1], must_stop=lambda step: step == 3))


def flip(path):
    """Another bit in a file, whose size and time stay."""
    data, status = bytearray(path.read_bytes()), path.stat()
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def flipped(model):
    """The file of the base, with another bit for the length of a test."""
    path, status = model / "model.safetensors", (model / "model.safetensors").stat()
    flip(path)
    yield path
    flip(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_another_base_is_refused(finished, flipped, tmp_path):
    path = flipped
    with pytest.raises(UserError, match=r"model\.safetensors: the adapters of .*run were trained on another file"):
        retrieval.load(finished.folder)
    unfinished = copied(finished, tmp_path / "unfinished", ())
    records.write_record(unfinished, "train", {**records.read_own_record(unfinished, "train"), "done": False})
    with pytest.raises(UserError, match=r"model\.safetensors: the adapters of .*unfinished were trained on another"):
        execute(unfinished, "train")
    path.touch()
    with pytest.raises(UserError, match="stage 'train': what it reads has changed since it ran"):
        execute(unfinished, "train")


@pytest.fixture(scope="module")
def adapter(finished):
    """The adapters of the run, as a folder of PEFT."""
    finished.config.export.adapter = True
    runner.run_stage(finished, "export")
    return finished.folder / "export"


def test_adapters_alone_are_exported_and_read(finished, adapter, model):
    assert not (adapter / "model.safetensors").exists() and not (adapter / "config.json").exists()
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(model)
    texts = ["the fox 1", "the dog"]
    found, wanted = (retrieval.load(place).encode_document(texts) for place in (adapter, finished.folder))
    assert np.allclose(found, wanted, atol=1e-5)


def test_an_adapter_names_the_sums_of_its_base(adapter, model, tmp_path):
    names = "config.json", "model.safetensors"
    sums = {f"base_sum:{name}": hashlib.sha256((model / name).read_bytes()).hexdigest() for name in names}
    assert tensor_files.metadata(adapter / "adapter_model.safetensors") == {"format": "pt", **sums}
    for name in names:
        flip(shutil.copytree(model, tmp_path / name) / name)
        with pytest.raises(UserError, match=rf"{name}: the adapter of .* was trained on another file of that name"):
            peft_folder.check_base(adapter, tmp_path / name)


def test_training_starts_from_an_adapter_that_is_merged(finished, adapter):
    config, params = trained_run.load_adapted(finished.folder, finished.vocab_size, finished.config.mesh)
    config.train.init_from = str(adapter)
    config.train.lora = experiment.defaults().train.lora
    like = train_state.abstract_state(config, abstract_model(config, finished.vocab_size), make_mesh(config))
    started = initial_parameters.initial_state(config, finished.vocab_size, like).params["query_tower"]
    wanted = adapters.merged(finished.config, params)["query_tower"]
    for part in ("encoder", "projection"):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), started[part], wanted[part])


@pytest.mark.parametrize("changes", [{"train.lora.rank": 0}, {"train.init_from": "runs/other"}, {}])
def test_an_export_without_adapters_of_a_published_model_is_refused(finished, adapter, changes):
    config = finished.config.copy_and_resolve_references()
    config.update_from_flattened_dict(changes or {"train.init_from": str(adapter)})
    with pytest.raises(UserError, match=r"config\.export\.adapter=True: "):
        adapters.check_export(config)
