"""Folders of sentence-transformers: every module in its order, by NumPy; what is not understood is refused by name."""

import json
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file
from support import exported

import retrieval
from configs import published
from retrieval.errors import UserError
from retrieval.runtime import model_folder

TEXTS = ["the fox", "a dog, 10-9", "the end of the fox"]


RANDOM = np.random.default_rng(0)


W1, B1, W2 = RANDOM.normal(size=(12, 16)), RANDOM.normal(size=12), RANDOM.normal(size=(5, 12))


SCALE, SHIFT = RANDOM.normal(size=(2, 12))


TORCH = "torch.nn.modules"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model that takes the mean, and nothing after it; its scores are inner products."""
    changes = {"model.tied": True, "model.normalize": False, "model.pooling": "mean", "model.embed_dim": 0}
    changes |= {"data.titles": "joined"}
    folder = exported.export(exported.work_directory(tmp_path_factory.mktemp("base") / "run", **changes))
    (folder / model_folder.SUMS).unlink()
    return folder


@pytest.fixture
def folder(base, tmp_path):
    return shutil.copytree(base, tmp_path / "model")


def set_keys(path, **values):
    record = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record | values))


def add(folder, kind, tensors=None, package="sentence_transformers.models", **config):
    """Adds a module behind those that a folder has."""
    modules = json.loads((folder / "modules.json").read_text())
    place = f"{len(modules)}_{kind}"
    modules.append({"idx": len(modules), "name": str(len(modules)), "path": place, "type": f"{package}.{kind}"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / place).mkdir()
    if config or kind != "Normalize":
        (folder / place / "config.json").write_text(json.dumps(config))
    if tensors:
        save_file({name: x.astype(np.float32) for name, x in tensors.items()}, folder / place / "model.safetensors")
    return folder


def dense(folder, weight, bias=None, activation=f"{TORCH}.linear.Identity", **more):
    tensors = {"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias})
    sizes = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": bias is not None}
    return add(folder, "Dense", tensors, **sizes, activation_function=activation, **more)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def standard(x):
    return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)


def tanh_by_default(folder):
    dense(folder, W1, B1)
    config = folder / "2_Dense" / "config.json"
    record = json.loads(config.read_text())
    config.write_text(json.dumps({k: v for k, v in record.items() if k not in ("activation_function", "bias")}))
    return folder, lambda x: np.tanh(x @ W1.T + B1)


def everything(folder):
    add(dense(add(folder, "Dropout", dropout=0.5), W1, B1, f"{TORCH}.activation.ReLU"), "Normalize")
    add(folder, "LayerNorm", {"norm.weight": SCALE, "norm.bias": SHIFT}, dimension=12)
    add(dense(folder, W2, None, f"{TORCH}.activation.GELU"), "Normalize", module_input_name="sentence_embedding")
    gelu = lambda x: np.asarray(jax.nn.gelu(jnp.asarray(x), approximate=False))  # noqa: E731
    return folder, lambda x: unit(gelu((standard(unit(np.maximum(x @ W1.T + B1, 0))) * SCALE + SHIFT) @ W2.T))


def cosine_by_default(folder):
    (folder / "config_sentence_transformers.json").unlink()
    return folder, unit


def older(folder):
    """As the first versions wrote it: with the encoder below, and switches for each way of pooling."""
    (folder / "0_Transformer").mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(folder / "0_Transformer" / path.name)
    (folder / "config.json").write_text('{"__version__": "1.0.0"}')
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    switches = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16} | switches))
    return folder, lambda x: x


CHAINS = [tanh_by_default, everything, cosine_by_default, older]


@pytest.mark.parametrize("chain", CHAINS)
def test_modules_are_applied_in_their_order(base, folder, chain):
    pooled = retrieval.load(base).encode_documents(TEXTS)
    folder, expected = chain(folder)
    model = retrieval.load(folder)
    np.testing.assert_allclose(model.encode_documents(TEXTS), expected(pooled), rtol=1e-4, atol=1e-5)
    scores = [hit.score for hit in model.index(TEXTS).search(TEXTS[0], k=3)]
    queries = expected(retrieval.load(base).encode_queries(TEXTS[:1]))
    np.testing.assert_allclose(scores, np.sort(queries @ expected(pooled).T)[0, ::-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chain", [everything, older])
def test_a_run_starts_from_all_of_them_and_exports_them(folder, tmp_path, chain):
    folder, _ = chain(folder)
    config = published.get_config(str(folder))
    model = {f"model.{name}": value for name, value in config.model.items() if not hasattr(value, "items")}
    start = {"train.init_from": str(folder), "vocab": str(folder)} | model
    run = exported.work_directory(tmp_path / "run", shift=0, **start, **{"data.titles": "joined"})
    theirs = retrieval.load(folder).encode_documents(TEXTS)
    np.testing.assert_allclose(retrieval.load(run.folder).encode_documents(TEXTS), theirs, atol=1e-6)
    again = exported.export(run)
    np.testing.assert_allclose(retrieval.load(again).encode_documents(TEXTS), theirs, atol=1e-6)


POOLING, SETTINGS, LENGTHS = "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        (SETTINGS, "similarity_fn_name", "euclidean", "similarity_fn_name is 'euclidean'; only 'cosine' or 'dot'"),
        (SETTINGS, "truncate_dim", 8, "truncate_dim is 8, and whether that changes a result is not known here"),
        (POOLING, "pooling_mode", ["cls", "mean"], "it pools by cls and mean; one of cls, mean"),
        (POOLING, "include_prompt", False, "include_prompt is False; only True"),
        (POOLING, "word_embedding_dimension", 32, "word_embedding_dimension is 32, and what comes before it has 16"),
        (LENGTHS, "max_seq_length", -5, "max_seq_length is -5; a whole number of at least 3"),
        ("config.json", "hidden_act", "gelu_new", "hidden_act is 'gelu_new'; only 'gelu'"),
        ("config.json", "auto_map", {"AutoModel": "x.Y"}, "auto_map is "),
        ("2_Dense/config.json", "use_residual", True, "use_residual is True; only False"),
        ("2_Dense/config.json", "out_features", 10**9, r"linear.weight \[12, 16\], and by"),
        ("2_Dense/config.json", "bias", False, r"its tensors are linear.bias \[12\], linear.weight"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(folder, file, key, value, message):
    published.get_config(str(dense(folder, W1, B1)))
    set_keys(folder / file, **{key: value})
    with pytest.raises(UserError, match=message) as caught:
        published.get_config(str(folder))
    assert str(folder / file) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "package", "message"),
    [
        ("Router", "sentence_transformers.models", "it has a module Router"),
        ("Pooling", "sentence_transformers.models", "not one Transformer with one Pooling"),
        ("Normalize", "custom_st", "'custom_st.Normalize' is code of the model's own"),
    ],
)
def test_other_modules_are_refused_by_name(folder, kind, package, message):
    add(folder, kind, package=package)
    with pytest.raises(UserError, match=message):
        retrieval.load(folder)


WRONG = (0, -1, 1.5, 16.0, "16", True, 10**400, float("nan"), float("inf"), [16], 10**9, 10**5, None)


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "layer_norm_eps"])
def test_sizes_are_compared_before_they_are_made(folder, key):
    began = time.perf_counter()
    for value in WRONG if key != "layer_norm_eps" else WRONG[:-1]:
        set_keys(folder / "config.json", **{key: value})
        with pytest.raises(UserError, match=rf"config\.json: ({key} is |not valid JSON)") as caught:
            retrieval.load(folder)
        assert len(str(caught.value)) < 400
    assert time.perf_counter() - began < 5
