"""Folders of sentence-transformers with encoders of several families: read, run from and written again.

Skipped where it is not installed; nothing is fetched. The models are tiny, with random parameters.
"""

import functools
import json
from typing import Any

import numpy as np
import pytest
from support import exported, tokenizer_kinds
from support.packages import package

import retrieval
from configs import published
from retrieval.data.tokenizers import vocabularies

torch, transformers, sentence_transformers = package("torch"), package("transformers"), package("sentence_transformers")
modules = package("sentence_transformers.sentence_transformer.modules")

H, LENGTH = 48, 40
TEXTS = ["the fox", "A dog, 10-9", "", "Ünïcödé 東京", "the end of the fox and of the dog " * 6]
SIZES = dict(hidden_size=H, intermediate_size=40, num_hidden_layers=4, max_position_embeddings=64)
# Keys of configs that say what an encoder does.
CONFIG = ("model_type", "sliding_window", "local_attention", "layer_types", "rope_parameters", "head_dim", "hidden_act")
HEADS = dict(num_attention_heads=3, num_key_value_heads=1, head_dim=8)


def modernbert(tokens):
    windows = dict(local_attention=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    config = transformers.ModernBertConfig(vocab_size=tokens, num_attention_heads=3, **windows, **SIZES)
    return transformers.ModernBertModel(config)


def qwen3(tokens):
    return transformers.Qwen3Model(transformers.Qwen3Config(vocab_size=tokens, **HEADS, **SIZES))


def gemma3(tokens):
    own = dict(use_bidirectional_attention=True, sliding_window=8, query_pre_attn_scalar=12)
    own |= dict(layer_types=["sliding_attention", "full_attention"] * 2)
    return transformers.Gemma3TextModel(transformers.Gemma3TextConfig(vocab_size=tokens, **own, **HEADS, **SIZES))


def t5(tokens):
    config = transformers.T5Config(vocab_size=tokens, d_model=H, d_kv=8, d_ff=40, num_layers=4, num_heads=3)
    return transformers.T5EncoderModel(config)


def mpnet(tokens):
    return transformers.MPNetModel(transformers.MPNetConfig(vocab_size=tokens, num_attention_heads=3, **SIZES))


def dense(size_in, size_out):
    return modules.Dense(size_in, size_out, bias=False, activation_function=torch.nn.Identity())


# The encoder, its tokenizer, how it pools, what follows, and how it is used.
FAMILIES = {
    "modernbert": (
        modernbert, "ModernBERT", {"pooling_mode": "cls"}, [],
        {"prompts": {"query": "search_query: ", "document": "search_document: "}, "truncate_dim": 20},
    ),
    "qwen3": (
        qwen3, "Qwen3-Embedding", {"pooling_mode": "lasttoken"}, [modules.Normalize],
        {"prompts": {"query": "Instruct: find it\nQuery:", "document": ""}},
    ),
    "gemma3_text": (
        gemma3, "EmbeddingGemma", {},
        [functools.partial(dense, H, 96), functools.partial(dense, 96, H), modules.Normalize],
        {"prompts": {"query": "task: search result | query: ", "document": "title: none | text: ", "sts": "task: "}},
    ),
    "t5": (
        t5, "T5", {"include_prompt": False}, [functools.partial(dense, H, 24), modules.Normalize],
        {"prompts": {"query": "the question: "}},
    ),
    "mpnet": (mpnet, "MPNet", {}, [modules.Normalize], {}),
}  # fmt: skip


@torch.no_grad()
def drawn(model):
    """The model with other parameters, those of norms too: fresh ones are 0 or 1, and hide mistakes."""
    torch.manual_seed(0)
    for name, values in model.named_parameters():
        is_scale = values.ndim == 1 and name.endswith("weight")
        values.normal_(1.0 if is_scale and "Gemma" not in type(model).__name__ else 0.0, 0.2)
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    make, tokenizer, pooling, rest, use = FAMILIES[request.param]
    root = tmp_path_factory.mktemp(request.param)
    tokens = 1 + max(tokenizer_kinds.write(root / "encoder", tokenizer).get_vocab().values())
    drawn(make(tokens + 100)).save_pretrained(root / "encoder")  # with rows of no token
    settings = json.loads((root / "encoder" / "tokenizer_config.json").read_text()) | {"model_max_length": LENGTH}
    (root / "encoder" / "tokenizer_config.json").write_text(json.dumps(settings))
    transformer = modules.Transformer(str(root / "encoder"))
    chain = [transformer, modules.Pooling(H, **pooling), *(each() for each in rest)]
    sentence_transformers.SentenceTransformer(modules=chain, device="cpu", **use).save(str(root / "model"))
    return root / "model"


def theirs(folder):
    """Embeddings of queries and of documents, of length 1 as ours are."""
    eager = {"attn_implementation": "eager"}
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu", model_kwargs=eager)
    return [encode(TEXTS, normalize_embeddings=True) for encode in (model.encode_query, model.encode_document)]


def ours(folder):
    model = retrieval.load(folder)
    return [model.encode_query(TEXTS), model.encode_document(TEXTS)]


def run_from(folder, work_directory):
    config = published.get_config(str(folder))
    fields = {f"model.{name}": value for name, value in config.model.items() if not hasattr(value, "items")}
    names = ("titles", "query_prefix", "document_prefix", "query_length", "document_length")
    fields |= {f"data.{name}": config.data[name] for name in names} | {"train.init_from": str(folder)}
    vocabulary: Any = vocabularies.load(folder / "tokenizer.json")
    return exported.work_directory(work_directory, shift=0, vocabulary=vocabulary, **fields, vocab=str(folder))


def test_two_rounds_change_nothing(folder, tmp_path):
    """From a folder to a run, and from a run to a folder: for sentence-transformers, and for us."""
    expected, given = theirs(folder), folder
    np.testing.assert_allclose(ours(folder), expected, atol=1e-5)
    for number in range(2):
        given = exported.export(run_from(given, tmp_path / str(number)))
        np.testing.assert_allclose(theirs(given), expected, atol=1e-5)
        np.testing.assert_allclose(ours(given), expected, atol=1e-5)
    first, last = (transformers.AutoConfig.from_pretrained(path).to_dict() for path in (folder, given))
    assert {key: first.get(key) for key in CONFIG} == {key: last.get(key) for key in CONFIG}
    if "sliding_window" in (written := json.loads((given / "config.json").read_text())):
        assert written["sliding_window"] == json.loads((folder / "config.json").read_text())["sliding_window"]
    assert tokens_of(given) == tokens_of(folder)


def tokens_of(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer(TEXTS, truncation=True)["input_ids"]
