"""Folders of PEFT: an adapter is read onto its base, or refused by file and key."""

import json
import shutil

import numpy as np
import pytest
from conftest import REPOSITORY
from flax import nnx
from safetensors.numpy import load_file, save_file

from retrieval.common.errors import UserError
from retrieval.common.files import write_json
from retrieval.common.runtime import model_folder
from retrieval.models import peft_folder
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.peft_folder import Matrix
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig
from retrieval.recipes.parameters import parameters_of

QUERY, KEY = "encoder.layer.1.attention.self.query", "encoder.layer.0.attention.self.key"


@pytest.fixture
def adapter(tmp_path):
    """An adapter of rank 2 of two matrices of a BERT, as PEFT writes one."""
    base = shutil.copytree(REPOSITORY / "tests" / "golden" / "bert", tmp_path / "base")
    config = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "lora_alpha": 3, "use_dora": False}
    config |= {"target_modules": ["query", "key"], "lora_bias": False, "bias": "none", "eva_config": None}
    write_json(tmp_path / "adapter" / "adapter_config.json", config)
    random, tensors = np.random.default_rng(0), {}
    for module in (QUERY, KEY):
        tensors[f"base_model.model.{module}.lora_A.weight"] = random.normal(size=(2, 16)).astype(np.float32)
        tensors[f"base_model.model.{module}.lora_B.weight"] = random.normal(size=(16, 2)).astype(np.float32)
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    return tmp_path / "adapter"


def changed(folder, **settings):
    path = folder / "adapter_config.json"
    write_json(path, json.loads(path.read_text()) | settings)
    return folder


def with_tensors(folder, change):
    path = folder / "adapter_model.safetensors"
    save_file({name: np.ascontiguousarray(x) for name, x in change(load_file(path)).items()}, path)
    return folder


def query_of(folder):
    bert = EncoderFolder.open(folder)
    return bert._tensors[f"{QUERY}.weight"]


@pytest.mark.parametrize(("settings", "scale"), [({}, 1.5), ({"use_rslora": True}, 3 / 2**0.5)])
def test_an_adapter_is_added_to_its_base(adapter, settings, scale):
    tensors = load_file(adapter / "adapter_model.safetensors")
    a, b = (tensors[f"base_model.model.{QUERY}.lora_{side}.weight"] for side in "AB")
    wanted = query_of(adapter.with_name("base")) + scale * b @ a
    np.testing.assert_allclose(query_of(changed(adapter, **settings)), wanted, rtol=0, atol=1e-6)
    files = {path.name for path in EncoderFolder.open(adapter).files}
    assert files == {"config.json", "model.safetensors", "adapter_config.json", "adapter_model.safetensors"}


def test_a_saved_head_takes_the_place_of_the_bases(adapter):
    head = np.full((3, 16), 2, np.float32)
    with_tensors(adapter, lambda tensors: tensors | {"base_model.model.classifier.weight": head})
    with pytest.raises(UserError, match=r"its adapter has classifier\.weight, and"):
        EncoderFolder.open(changed(adapter, modules_to_save=5))
    assert EncoderFolder.open(changed(adapter, modules_to_save=["classifier"])).classes == 3
    np.testing.assert_array_equal(EncoderFolder.open(adapter)._tensors["classifier.weight"], head)


def test_a_saved_table_may_have_more_tokens_than_its_base(adapter):
    name = "embeddings.word_embeddings.weight"
    table = np.random.default_rng(1).normal(size=(EncoderFolder.open(adapter).sizes["vocab_size"] + 2, 16))
    with_tensors(adapter, lambda tensors: tensors | {f"base_model.model.{name}": table.astype(np.float32)})
    folder = EncoderFolder.open(adapter)
    assert folder.sizes["vocab_size"] == len(table)
    np.testing.assert_array_equal(folder._tensors[name], table.astype(np.float32))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"target_parameters": ["experts"]}, r"target_parameters is \['experts'\]"),
        ({"alora_invocation_tokens": [1]}, r"alora_invocation_tokens is \[1\], and whether that changes a result"),
        ({"layer_replication": [[0, 2]]}, r"layer_replication is \[\[0, 2\]\]"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only 'LORA'"),
        ({"trainable_token_indices": [1, 7]}, r"trainable_token_indices is \[1, 7\]"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"r": 3}, "is no pair of lora_A and lora_B of rank 3"),
        ({"lora_alpha": "3"}, "lora_alpha is '3' and alpha_pattern {}; numbers above 0 are needed"),
        ({"rank_pattern": {"(a+)+": 2}}, r"rank_pattern has '\(a\+\)\+', and names of modules alone"),
        ({"base_model_name_or_path": "/nowhere/base"}, "stands on '/nowhere/base', and there is no such folder"),
        ({"base_model_name_or_path": None}, "no base_model_name_or_path"),
        ({"rank_pattern": dict.fromkeys(map("layer.{}".format, range(400_000)), 2)}, "more than 4194304 bytes"),
        ({"base_model_name_or_path": "."}, "it stands on another adapter"),
    ],
)
def test_what_is_not_understood_is_refused(adapter, settings, match, monkeypatch):
    monkeypatch.chdir(adapter)
    with pytest.raises(UserError, match=rf"adapter(_config\.json|_model\.safetensors)?: .*{match}"):
        EncoderFolder.open(changed(adapter, **settings))


def renamed(old, new):
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (renamed("layer.1", "layer.7"), r"its adapter has encoder\.layer\.7\.attention\.self\.query\.weight, and"),
        (
            lambda tensors: {name: x[:, :8] if "_A" in name else x for name, x in tensors.items()},
            r"is of \[16, 8\], and",
        ),
        (lambda tensors: tensors | {"base_model.model.a.modules_to_save.weight": np.ones(2)}, "embedding_layers=False"),
        (renamed("query.lora_A.weight", "query.lora_magnitude_A"), "is no part of an adapter of a matrix"),
        (lambda tensors: dict(list(tensors.items())[:-1]), "is no pair of lora_A and lora_B"),
        (lambda tensors: {name: np.full_like(x, np.nan) for name, x in tensors.items()}, "not finite"),
    ],
)
def test_an_adapter_of_another_model_is_refused(adapter, change, match):
    with_tensors(adapter, change)
    with pytest.raises(UserError, match=match):
        bert = EncoderFolder.open(adapter)
        model = nnx.eval_shape(lambda: Transformer(TransformerConfig(**bert.sizes), rngs=nnx.Rngs(0)))
        bert.encoder(parameters_of(model))


def test_several_matrices_in_one_have_the_sum_of_their_ranks(tmp_path):
    """The product of what is written is each part's own, in its rows, and 0 elsewhere."""
    random = np.random.default_rng(0)
    fused = Matrix("layers.0.attn.Wqkv", ["0/query", "0/key", "0/value"])
    parts = {}
    for name in ("0/query", "0/value"):
        parts[f"{name}/lora_a"] = random.normal(size=(5, 2)).astype(np.float32)
        parts[f"{name}/lora_b"] = random.normal(size=(2, 4)).astype(np.float32)
    options = {"base": "base", "revision": None, "sums": {}, "alpha": 3.0, "dropout": 0.0}
    peft_folder.write(tmp_path, parts, [fused], **options)
    (module,) = peft_folder.read(tmp_path).matrices
    a, b, scale = peft_folder.read(tmp_path).matrices[module]
    assert a.shape == (4, 5) and b.shape == (12, 4) and module == fused.name
    query, value = (1.5 * parts[f"{name}/lora_a"] @ parts[f"{name}/lora_b"] for name in ("0/query", "0/value"))
    wanted = np.concatenate([query.T, np.zeros((4, 5)), value.T])
    np.testing.assert_allclose(scale * b @ a, wanted, rtol=0, atol=1e-5)


def test_a_target_is_named_in_full_where_its_end_is_anothers(tmp_path):
    ends = ("attention.output.dense", "output.dense")
    matrices = [Matrix(f"encoder.layer.{n}.{end}", [f"{n}/{end}"]) for n in range(2) for end in ends]
    for adapted, wanted in ((ends[:1], ["attention.output.dense"]), (ends[1:], [m.name for m in matrices[1::2]])):
        parts = {f"{n}/{end}/lora_{side}": np.ones((3, 3)) for n in range(2) for end in adapted for side in "ab"}
        options = {"base": "base", "revision": None, "sums": {}, "alpha": 3.0, "dropout": 0.0}
        peft_folder.write(tmp_path, parts, matrices, **options)
        assert json.loads((tmp_path / model_folder.ADAPTER).read_text())["target_modules"] == wanted
