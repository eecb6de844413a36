"""Folders of sentence-transformers: every module in its order, by NumPy; what is not understood is refused by name."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file
from support import bert_folders, exported
from support.tiny import make_run

import retrieval
from configs import published
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.data.sets.beir import Candidate
from retrieval.methods.reranker.trained import RERANKERS
from retrieval.models.text import Text
from retrieval.runs.pipeline.work_directory import kept_config
from retrieval.runs.weights import published_weights as bert_weights
from retrieval.runs.weights import trained_run

TEXTS = ["the fox", "a dog, 10-9", "the end of the fox"]
RANDOM = np.random.default_rng(0)
W1, B1, W2 = RANDOM.normal(size=(12, 16)), RANDOM.normal(size=12), RANDOM.normal(size=(5, 12))
SCALE, SHIFT = RANDOM.normal(size=(2, 12))
TORCH = "torch.nn.modules"
MEAN = {"model.tied": True, "model.normalize": False, "model.pooling": "mean", "model.embed_dim": 0}
MEAN |= {"data.titles": "joined"}
POOLING, SETTINGS, LENGTHS = "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model that takes the mean, and nothing after it; its scores are inner products."""
    folder = exported.export(exported.work_directory(tmp_path_factory.mktemp("base") / "run", **MEAN))
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


def everything(folder):
    add(dense(add(folder, "Dropout", dropout=0.5), W1, B1, f"{TORCH}.activation.ReLU"), "Normalize")
    add(folder, "LayerNorm", {"norm.weight": SCALE, "norm.bias": SHIFT}, dimension=12)
    add(dense(folder, W2, None, f"{TORCH}.activation.GELU"), "Normalize", module_input_name="sentence_embedding")
    gelu = lambda x: np.asarray(jax.nn.gelu(jnp.asarray(x), approximate=False))  # noqa: E731
    return folder, lambda x: unit(gelu((standard(unit(np.maximum(x @ W1.T + B1, 0))) * SCALE + SHIFT) @ W2.T))


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


def newer(folder):
    """As version 6 writes it, of a model whose tokenizer has a template of chats."""
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    modalities = {"text": text, "message": {**text, "format": "flat"}}
    written = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
    (folder / "sentence_bert_config.json").write_text(json.dumps({**written, "modality_config": modalities}))
    modules = json.loads((folder / "modules.json").read_text())
    for module, name in zip(modules, ("base.modules.transformer", "sentence_transformer.modules.pooling")):
        module["type"] = f"sentence_transformers.{name}.{module['type'].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps(modules))
    return dense(folder, W1, B1, module_input_name="sentence_embedding"), lambda x: x @ W1.T + B1


@pytest.mark.parametrize("chain", [everything, pytest.param(older, marks=pytest.mark.long), newer])
def test_modules_are_applied_in_their_order(base, folder, chain):
    pooled = retrieval.load(base).encode_document(TEXTS)
    folder, expected = chain(folder)
    model = retrieval.load(folder)
    np.testing.assert_allclose(model.encode_document(TEXTS), expected(pooled), rtol=1e-4, atol=1e-5)
    scores = [hit.score for hit in model.index(TEXTS).search(TEXTS[0], k=3)]
    queries = expected(retrieval.load(base).encode_query(TEXTS[:1]))
    np.testing.assert_allclose(scores, np.sort(queries @ expected(pooled).T)[0, ::-1], rtol=1e-4, atol=1e-5)


def partly(folder):
    """The last token of what is behind the prompt, some dimensions of it, with length 1."""
    prompted(add(folder, "Normalize"), include_prompt=False, pooling_mode="lasttoken")
    set_keys(folder / SETTINGS, truncate_dim=10)
    return folder, None


@pytest.mark.parametrize("chain", [everything, pytest.param(older, marks=pytest.mark.long), partly])
def test_a_run_starts_from_all_of_them_and_exports_them(folder, tmp_path, chain):
    folder, _ = chain(folder)
    config = published.get_config(str(folder))
    model = {f"model.{name}": value for name, value in config.model.items() if not hasattr(value, "items")}
    start = {"train.init_from": str(folder), "vocab": str(folder)} | model
    texts = {f"data.{name}": config.data[name] for name in ("titles", "query_prefix", "document_prefix")}
    run = exported.work_directory(tmp_path / "run", shift=0, **start, **texts)
    theirs = retrieval.load(folder)
    for model in (retrieval.load(run.folder), retrieval.load(exported.export(run))):
        np.testing.assert_allclose(model.encode_document(TEXTS), theirs.encode_document(TEXTS), atol=1e-6)
        np.testing.assert_allclose(model.encode_query(TEXTS), theirs.encode_query(TEXTS), atol=1e-6)


def prompted(folder, **pooling):
    prompts = {"query": "the fox: ", "document": "", "clustering": "a dog: "}
    set_keys(folder / "config_sentence_transformers.json", prompts=prompts)
    set_keys(folder / "1_Pooling" / "config.json", **pooling)
    return folder


def hidden_states(folder, text="", row=None):
    """Of the encoder alone, [L, H], for a text or a row of tokens."""
    vocabulary, encoder = exported.VOCABULARY, bert_folders.load(folder).encoder
    ids = np.array([row or vocabulary.single(vocabulary.encode(text), 40)], np.int32)
    batch = Text.from_ids(jnp.asarray(ids), jnp.zeros_like(ids))
    return np.asarray(nnx.jit(lambda encoder, text: encoder(text, dropout_key=None))(encoder, batch))[0]


@pytest.mark.parametrize("document", [{}, pytest.param({"document": ""}, marks=pytest.mark.long)])
def test_documents_have_no_prompt_of_another_name(document, folder, caplog):
    """As sentence-transformers 6.2 reads such a folder."""
    caplog.set_level("INFO")
    set_keys(folder / SETTINGS, prompts={"query": "a dog: ", "passage": "the fox: ", **document})
    expected = hidden_states(folder, "dog").mean(axis=0)
    np.testing.assert_allclose(retrieval.load(folder).encode_document(["dog"])[0], expected, atol=1e-5)
    assert "before queries 'a dog: ', before documents ''" in caplog.text
    assert "its prompts passage stand before no text unless named" in caplog.text


@pytest.mark.parametrize("activation", ["Sigmoid", pytest.param("Identity", marks=pytest.mark.long)])
def test_a_cross_encoder_may_be_made_of_modules(folder, activation, tmp_path, inputs):
    """Of a pair in one row without token types, cut to the folder's own length."""
    add(dense(folder, W1, B1), "LayerNorm", {"norm.weight": SCALE, "norm.bias": SHIFT}, dimension=12)
    dense(folder, W2[:1], B1[:1], module_output_name="scores")
    kind = "linear" if activation == "Identity" else "activation"
    settings = {"model_type": "CrossEncoder", "activation_fn": f"{TORCH}.{kind}.{activation}"}
    (folder / SETTINGS).write_text(json.dumps(settings))
    set_keys(folder / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    set_keys(folder / LENGTHS, max_seq_length=12)
    row = exported.VOCABULARY.pair(*map(exported.VOCABULARY.encode, ("the fox", "a dog " * 9)), 12)
    x = hidden_states(folder, row=row).mean(axis=0, keepdims=True)
    score = ((standard(x @ W1.T + B1) * SCALE + SHIFT) @ W2[:1].T + B1[:1]).item()
    run = make_run("bm25", inputs, tmp_path / "run", **{"model.dtype": "float32"})
    reranker = RERANKERS.open(run, str(folder), "config.rerank.model")
    scores = reranker.scores_of("the fox", [Candidate("", "", "a dog " * 9)])
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-score)) if activation == "Sigmoid" else score, atol=1e-4)
    set_keys(folder / "4_Dense" / "config.json", out_features=2)
    with pytest.raises(UserError, match="copy both again"):
        RERANKERS.check(run, str(folder), "config.rerank.model")


def test_a_prompt_is_chosen_by_its_name(folder, caplog):
    caplog.set_level("INFO")
    usual = retrieval.load(prompted(folder))
    assert "its prompts clustering stand before no text" in caplog.text
    chosen = retrieval.load(folder, query_prompt="clustering", document_prompt="query")
    expected = hidden_states(folder, "a dog: fox").mean(axis=0)
    np.testing.assert_allclose(chosen.encode_query(["fox"])[0], expected, atol=1e-5)
    np.testing.assert_allclose(chosen.encode_document(["fox"]), usual.encode_query(["fox"]), atol=1e-6)
    with pytest.raises(UserError, match=r"unknown prompt of .* 'classify': known: clustering, document, query"):
        retrieval.load(folder, query_prompt="classify")
    set_keys(folder / SETTINGS, default_prompt_name="clustering")
    with pytest.raises(UserError, match="default_prompt_name is 'clustering', of neither queries nor documents"):
        retrieval.load(folder)


def test_embeddings_are_truncated_and_then_normalised(folder):
    whole = retrieval.load(folder).encode_document(TEXTS)
    set_keys(folder / SETTINGS, truncate_dim=10)
    np.testing.assert_allclose(retrieval.load(folder).encode_document(TEXTS), whole[:, :10], atol=1e-6)
    add(folder, "Normalize")
    for chosen, kept in ((None, 10), (16, 16)):
        model = retrieval.load(folder, **({"truncate_dim": chosen} if chosen else {}))
        np.testing.assert_allclose(model.encode_document(TEXTS), unit(whole[:, :kept]), atol=1e-6)
    with pytest.raises(UserError, match=r"config\.model\.truncate_dim=17: embeddings have 16 dimensions"):
        retrieval.load(folder, truncate_dim=17)
    set_keys(folder / SETTINGS, truncate_dim=99)  # which cuts nothing there
    np.testing.assert_allclose(retrieval.load(folder).encode_document(TEXTS), unit(whole), atol=1e-6)


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        (SETTINGS, "similarity_fn_name", "euclidean", "similarity_fn_name is 'euclidean'; only 'cosine' or 'dot'"),
        (SETTINGS, "prompts", {"query": 7}, "prompts is {'query': 7}, and a text for each name"),
        (POOLING, "pooling_mode", ["cls", "mean"], "it pools by cls and mean; one of cls, mean"),
        (POOLING, "pooling_mode", "max", "it pools by max; one of cls, mean, lasttoken, weightedmean"),
        (LENGTHS, "query_expansion", {"length": 32}, "query_expansion is {'length': 32}, and whether"),
        (POOLING, "word_embedding_dimension", 32, "word_embedding_dimension is 32; only 16"),
        ("config.json", "auto_map", {"AutoModel": "x.Y"}, "auto_map is "),
        ("2_Dense/config.json", "out_features", 10**9, r"linear.weight \[12, 16\], and by"),
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
        ("Router", "sentence_transformers.models", "Router; a Transformer, a Pooling"),
        (
            "LogitScore",
            "sentence_transformers.cross_encoder.modules.logit_score",
            "LogitScore; a Transformer, a Pooling",
        ),
        ("Pooling", "sentence_transformers.models", "its modules are "),
        ("Normalize", "custom_st", "'custom_st.Normalize' has settings or code of its own"),
    ],
)
def test_other_modules_are_refused_by_name(folder, kind, package, message):
    add(folder, kind, package=package)
    with pytest.raises(UserError, match=message):
        retrieval.load(folder)


def test_more_modules_than_any_folder_has_are_refused(folder):
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules + modules[-1:] * 100))
    with pytest.raises(UserError, match=r"modules\.json: not 1 to 100 modules"):
        retrieval.load(folder)


def test_a_run_may_keep_fewer_dimensions_than_the_one_it_starts_from(base, tmp_path):
    start = {"train.init_from": str(base.parent), "model.truncate_dim": 6}
    run = exported.work_directory(tmp_path / "run", shift=0, **MEAN, **start)
    trained_run.check_sizes(run.config, kept_config(base.parent))
    expected = retrieval.load(base).encode_document(TEXTS)[:, :6]
    np.testing.assert_allclose(retrieval.load(run.folder).encode_document(TEXTS), expected, atol=1e-6)


def test_what_a_config_lacks_of_a_folder_is_said_with_its_flags(folder):
    config = published.get_config(str(partly(folder)[0]))
    bert_weights.check(config, folder / "vocab.txt")
    config.model.update(pool_from=(0, 0), truncate_dim=0, pooling="mean")
    with pytest.raises(UserError) as caught:
        bert_weights.check(config, folder / "vocab.txt")
    flags = "--config.model.pooling=last --config.model.truncate_dim=10 --config.model.pool_from='(4, 0)'"
    assert f"this config lacks what its modules do; set\n  {flags}\n" in str(caught.value)
