"""Folders of encoders that cannot be read exactly: each is refused by the names of the file and of the field."""

import json
import re

import numpy as np
import pytest
from support.encoder_folders import FAMILIES, H, V, write
from support.encoder_models import load

from retrieval.errors import UserError
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoders import family as families

# What is set in config.json, and what the message says.
CONFIGS = {
    "an unknown model": ("qwen3", dict(model_type="eurobert"), "model_type is 'eurobert'"),
    "a decoder of ModernBERT": ("modernbert", dict(model_type="modernbert-decoder"), "model_type is 'modernbert-dec"),
    "a model of images": ("embedding_gemma", dict(model_type="embedding_gemma2"), "model_type is 'embedding_gemma2'"),
    "another Jina": ("gte", dict(model_type="jina_embeddings_v3"), "model_type is 'jina_embeddings_v3'"),
    "scaling that is not built": (
        "qwen3",
        dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)),
        "rope_type is 'yarn'",
    ),
    "the same, as it was called": ("llama", dict(rope_scaling=dict(type="dynamic", factor=2.0)), "rope_type is 'dyn"),
    "in version 5": ("gte", dict(rope_parameters=dict(rope_type="longrope")), "rope_type is 'longrope'"),
    "two spellings of scaling": (
        "qwen3",
        dict(rope_scaling=dict(type="linear", factor=2.0), rope_parameters=dict(rope_type="linear", factor=4.0)),
        "rope_scaling and rope_parameters say linear:4 and linear:2",
    ),
    "two spellings of Gemma's": (
        "gemma3",
        dict(rope_scaling=dict(type="linear", factor=2.0), rope_parameters={
            kind: dict(rope_type="default", rope_theta=base)
            for kind, base in (("full_attention", 1e6), ("sliding_attention", 1e4))
        }),
        "and rope_parameters say",
    ),
    "two thetas": ("llama", dict(rope_theta=7.0, rope_parameters=dict(rope_theta=8.0)), "say 8.0 and 7.0"),
    "RoBERTa's without its name": ("mpnet", dict(model_type=None, architectures=None), "model_type is None"),
    "a class of nobody": ("mpnet", dict(model_type=None, architectures=["XModel"]), "model_type is None"),
    "an activation of T5": ("t5", dict(dense_act_fn="tanh"), "dense_act_fn is 'tanh'"),
    "a number of llama3's that is missing": (
        "llama3",
        dict(rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)),
        "original_max_position_embeddings",
    ),
    "scaling of local layers": (
        "gemma3",
        dict(rope_parameters={kind: dict(rope_type="linear", factor=2.0, rope_theta=1e4) for kind in
                              ("full_attention", "sliding_attention")}),
        "rope_parameters.sliding_attention has a rope_type",
    ),
    "scaling of ModernBERT's": ("modernbert", dict(rope_scaling=dict(type="linear", factor=2.0)), "rope_scaling"),
    "a theta that is none": ("qwen3", dict(rope_theta=-1.0), "rope_theta is -1.0"),
    "an activation": ("qwen3", dict(hidden_act="relu"), "hidden_act is 'relu'; only 'silu'"),
    "Gemma's other one": ("gemma3", dict(hidden_activation="gelu"), "hidden_activation is 'gelu'"),
    "one of T5": ("t5", dict(feed_forward_proj="gated-relu"), "feed_forward_proj is 'gated-relu'"),
    "biases": ("qwen3", dict(attention_bias=True), "attention_bias is True"),
    "biases of the MLP": ("llama", dict(mlp_bias=True), "mlp_bias is True"),
    "biases of norms": ("modernbert", dict(norm_bias=True), "norm_bias is True"),
    "caps of scores": ("gemma3", dict(attn_logit_softcapping=30.0), "attn_logit_softcapping is 30.0; only null"),
    "a scale that another family has": ("qwen3", dict(logit_scale=0.5), "logit_scale is 0.5, and whether that changes"),
    "other buckets": ("t5", dict(relative_attention_num_buckets=64), "relative_attention_num_buckets is 64"),
    "other distances": ("t5", dict(relative_attention_max_distance=64), "relative_attention_max_distance is 64"),
    "local layers of Qwen3": ("qwen3", dict(use_sliding_window=True, sliding_window=8), "use_sliding_window is True"),
    "an odd window": ("modernbert", dict(local_attention=7), "local_attention is 7"),
    "an order of layers": (
        "gemma3",
        dict(layer_types=["full_attention"] * 2 + ["sliding_attention"] * 5),
        "layer_types is not",
    ),
    "too few kinds of layers": ("modernbert", dict(layer_types=["full_attention"] * 6), "layer_types is not of 7"),
    "a kind of layer": ("qwen3", dict(layer_types=["chunked_attention"] * 7), "layer_types"),
    "heads that share no keys": ("qwen3", dict(num_key_value_heads=3), "num_key_value_heads is 3"),
    "no heads": ("qwen3", dict(num_attention_heads=0), "num_attention_heads is 0"),
    "heads that do not divide": ("modernbert", dict(num_attention_heads=5), "num_attention_heads is 5"),
    "an odd head": ("qwen3", dict(head_dim=7), "head_dim is 7"),
    "no size": ("qwen3", dict(intermediate_size=None), "intermediate_size is None"),
    "an epsilon": ("gemma3", dict(rms_norm_eps=0.0), "rms_norm_eps is 0.0"),
    "more layers than tensors": ("qwen3", dict(num_hidden_layers=8), "num_hidden_layers is 8"),
    "fewer layers": ("t5", dict(num_layers=6), "num_layers is 6"),
    "another vocabulary": ("qwen3", dict(vocab_size=V + 1), f"vocab_size is {V + 1}"),
    "another hidden size": ("llama", dict(hidden_size=H + 4, head_dim=8), f"hidden_size is {H + 4}"),
    "another MLP": ("gemma3", dict(intermediate_size=39), "intermediate_size is 39"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_is_not_understood_is_refused(case, tmp_path):
    name, fields, message = CONFIGS[case]
    folder = write(tmp_path, name)
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        EncoderFolder.open(folder)
    assert str(folder / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def _without(key):
    return lambda config, tensors: tensors.pop(key)


def _with(key, function):
    """A tensor that is made of what it was, or of nothing."""

    def change(_, tensors):
        tensors[key] = np.ascontiguousarray(function(tensors.get(key)), np.float32)

    return change


def _types(config, tensors):
    config.pop("type_vocab_size", None)
    tensors["embeddings.token_type_embeddings.weight"] = np.ones((2, H), np.float32)


def _infinite(x):
    return np.where(np.arange(x.size).reshape(x.shape) == 5, np.inf, x)


TENSORS = {
    "one is missing": (
        "qwen3",
        _without("layers.3.self_attn.k_norm.weight"),
        "layers.3.self_attn.k_norm.weight is missing",
    ),
    "a fused one": ("modernbert", _without("layers.2.attn.Wqkv.weight"), "layers.2.attn.Wqkv.weight is missing"),
    "the embeddings": ("qwen3", _without("embed_tokens.weight"), "embed_tokens.weight is missing"),
    "a norm of Gemma": (
        "gemma3",
        _without("layers.1.post_feedforward_layernorm.weight"),
        "layers.1.post_feedforward_layernorm.weight is missing",
    ),
    "the bias by distance": (
        "t5",
        _without("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        "relative_attention_bias.weight is missing",
    ),
    "a bias": ("qwen2", _without("layers.0.self_attn.q_proj.bias"), "layers.0.self_attn.q_proj.bias is missing"),
    "one is left over": (
        "qwen3",
        _with("layers.0.self_attn.q_proj.bias", lambda _: np.ones(32)),
        "layers.0.self_attn.q_proj.bias [32] is left over",
    ),
    "the norm that layer 0 has not": (
        "modernbert",
        _with("layers.0.attn_norm.weight", lambda _: np.ones(H)),
        "layers.0.attn_norm.weight [48] is left over",
    ),
    "norms of heads": (
        "llama",
        _with("layers.0.self_attn.q_norm.weight", lambda _: np.ones(8)),
        "layers.0.self_attn.q_norm.weight [8] is left over",
    ),
    "an adapter": (
        "qwen3",
        _with("base_model.model.layers.0.self_attn.q_proj.lora_A.weight", lambda _: np.ones((4, H))),
        "lora_A.weight [4, 48] is left over",
    ),
    "a shape": (
        "qwen3",
        _with("layers.6.self_attn.o_proj.weight", lambda x: x[:, :-8]),
        "layers.6.self_attn.o_proj.weight is [48, 24], [48, 32] is needed",
    ),
    "the shape of a fused one": (
        "modernbert",
        _with("layers.1.mlp.Wi.weight", lambda x: x[:-1]),
        "layers.1.mlp.Wi.weight [79, 48] does not fall into equal parts",
    ),
    "the size of a fused one": (
        "modernbert",
        _with("layers.1.mlp.Wi.weight", lambda x: x[:-2]),
        "a part of layers.1.mlp.Wi.weight is [39, 48], [40, 48] is needed",
    ),
    "heads of another size": (
        "gemma3",
        _with("layers.0.self_attn.k_norm.weight", lambda x: np.append(x, x)),
        "layers.0.self_attn.k_norm.weight is [16], [8] is needed",
    ),
    "types that the config leaves out": ("gte", _types, "type_vocab_size is 1, and in model.safetensors"),
    "a value": (
        "gte",
        _with("encoder.layer.2.mlp.up_gate_proj.weight", _infinite),
        "encoder.layer.2.mlp.up_gate_proj.weight has values that are not finite",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_fit_are_refused(case, tmp_path):
    name, change, message = TENSORS[case]
    folder = write(tmp_path, name, change)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load(folder)
    assert str(tmp_path) in str(caught.value)
    assert "#" not in str(caught.value), "the name is that of the file"


_XLMR = dict(architectures=["XLMRobertaModel"], type_vocab_size=1)


@pytest.mark.parametrize(
    ("name", "fields", "switches"),
    [
        ("t5", dict(dense_act_fn="gelu_new", is_gated_act=False), dict(activation="gelu_tanh", gated=False)),
        ("mistral", dict(sliding_window=6, is_causal=False), dict(reach=6, causal=False)),
        ("mpnet", dict(model_type=None, relative_attention_num_buckets=None, **_XLMR), dict(family="bert")),
        ("mistral", dict(sliding_window=6), dict(reach=5, causal=True)),
        ("qwen3", dict(rope_parameters=dict(rope_theta=7.0), rope_theta=7), dict(rope_theta=7.0)),
    ],
)
def test_keys_at_every_spelling(name, fields, switches, tmp_path):
    path = write(tmp_path, name) / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if not key.startswith("rope")}
    config |= fields
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    found = families.read(path)[1]["architecture"]
    assert {key: getattr(found, key) for key in switches} == switches


@pytest.mark.parametrize("name", FAMILIES)
def test_a_key_that_nobody_knows_is_refused(name, tmp_path):
    with pytest.raises(UserError, match=r"config\.json: residual_multiplier is 0\.22, and whether that changes"):
        EncoderFolder.open(write(tmp_path, name, residual_multiplier=0.22))


def test_a_window_that_may_have_been_halved_is_told(tmp_path, caplog):
    """It is read as transformers reads it: versions that halved it on every save are the ones that write odd ones."""
    reaches = [
        EncoderFolder.open(write(tmp_path / f"{window}", "embedding_gemma", sliding_window=window)).sizes[
            "architecture"
        ]
        for window in (6, 7)
    ]
    assert reaches[0] == reaches[1]
    (told,) = caplog.messages
    assert str(tmp_path / "7" / "config.json") in told and "sliding_window is 7" in told
