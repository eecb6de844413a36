"""Configs and tensors of encoders: every key is read, or refused by the names of the file and of the key."""

import json
import re

import numpy as np
import pytest
from support.encoder_folders import FAMILIES, H, V, write
from support.encoder_models import load

from retrieval.common.errors import UserError
from retrieval.data.tokenizers import vocabularies
from retrieval.models import known_keys, tensor_files
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoders import family as families
from retrieval.models.positions import frequencies


def written(folder, config):
    """Writes a config without what is None, and gives what it is read as."""
    path = folder / "config.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path


def read(folder, config):
    return families.read(written(folder, config))[1]


# What is set in config.json, and what the message says.
CONFIGS = {
    "an unknown model": ("qwen3", dict(model_type="jina_v3"), "model_type is 'jina_v3'"),
    "scaling that is not built": (
        "qwen3",
        dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)),
        "rope_type is 'yarn'",
    ),
    "two spellings of scaling": (
        "qwen3",
        dict(rope_scaling=dict(type="linear", factor=2.0), rope_parameters=dict(rope_type="linear", factor=4.0)),
        "rope_scaling and rope_parameters say linear:4 and linear:2",
    ),
    "two thetas": ("llama", dict(rope_theta=7.0, rope_parameters=dict(rope_theta=8.0)), "say 8.0 and 7.0"),
    "a model without its name": ("mpnet", dict(model_type=None), "model_type is None"),
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
    "an odd window": ("modernbert", dict(local_attention=7), "local_attention is 7"),
    "an order of layers": (
        "gemma3",
        dict(layer_types=["full_attention"] * 2 + ["sliding_attention"] * 5),
        "layer_types is not",
    ),
    "too few kinds of layers": ("modernbert", dict(layer_types=["full_attention"] * 6), "layer_types is not of 7"),
    "heads that share no keys": ("qwen3", dict(num_key_value_heads=3), "3 kv_heads do not divide num_heads 4"),
    "heads that do not divide": ("modernbert", dict(num_attention_heads=5), "is not a multiple of num_heads 5"),
    "an odd head": ("qwen3", dict(head_dim=7), "need an even head_size, and it is 7"),
    "more layers than tensors": ("qwen3", dict(num_hidden_layers=8), "num_hidden_layers is 8"),
    "another vocabulary": ("qwen3", dict(vocab_size=V + 1), f"its sizes make embed_tokens.weight [{V + 1}, {H}], and"),
    "another hidden size": ("llama", dict(hidden_size=H + 4, head_dim=8), f"embed_tokens.weight [{V}, {H + 4}], and"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_is_not_understood_is_refused(case, tmp_path):
    name, fields, message = CONFIGS[case]
    folder = write(tmp_path, name)
    written(folder, {**FAMILIES[name].config, **fields})
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        EncoderFolder.open(folder)
    assert str(folder / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def others(value):
    """Values that might stand in the place of one."""
    numbers = [2 * value] if isinstance(value, int | float) else []
    return [not value] if isinstance(value, bool) else [["other"], *numbers]


@pytest.mark.parametrize("name", FAMILIES)
def test_each_key_is_read_or_refused(name, tmp_path):
    """One at a time: the encoder is another, or it is refused. `interop_encoders_test` says which is right."""
    config = FAMILIES[name].config
    family = families.FAMILIES[config["model_type"]]
    unread = {*families.HARMLESS, *family.ignored.split(), *family.rates.values(), "model_type"}
    plain = read(tmp_path, config)
    for key, value in {**dict.fromkeys(family.known), **config, "residual_multiplier": None}.items():
        for other in others(value) if key not in unread else []:
            try:
                assert read(tmp_path, {**config, key: other}) != plain, f"{key}={other}"
            except UserError as error:
                assert str(tmp_path / "config.json") in str(error)
                assert key in str(error) or other != ["other"], error


def tensor(key, change):
    """Another tensor in the place of one, or of nothing."""

    def changed(_, tensors):
        tensors[key] = np.ascontiguousarray(change(tensors.get(key)), np.float32)

    return changed


def missing(key):
    return lambda _, tensors: tensors.pop(key)


def two_types(config, tensors):
    config.pop("type_vocab_size", None)
    tensors["embeddings.token_type_embeddings.weight"] = np.ones((2, H), np.float32)


def infinite(x):
    return np.where(np.arange(x.size).reshape(x.shape) == 5, np.inf, x)


# A family, what becomes of its tensors, and what the message says.
TENSORS = [
    ("modernbert", missing("layers.2.attn.Wqkv.weight"), "layers.2.attn.Wqkv.weight part 0 is missing"),
    ("qwen3", missing("embed_tokens.weight"), "model.safetensors has none: copy both again"),
    ("qwen3", tensor("layers.0.self_attn.q_proj.bias", lambda _: np.ones(32)), "q_proj.bias [32] is left over"),
    ("modernbert", tensor("layers.0.attn_norm.weight", lambda _: np.ones(H)), "attn_norm.weight [48] is left over"),
    (
        "qwen3",
        tensor("layers.6.self_attn.o_proj.weight", lambda x: x[:, :-8]),
        "layers.6.self_attn.o_proj.weight is [48, 24], [48, 32] is needed",
    ),
    ("modernbert", tensor("layers.1.mlp.Wi.weight", lambda x: x[:-1]), "layers.1.mlp.Wi.weight part 1 is missing"),
    (
        "modernbert",
        tensor("layers.1.mlp.Wi.weight", lambda x: x[:-2]),
        "layers.1.mlp.Wi.weight part 1 is [39, 48], [40, 48] is needed",
    ),
    (
        "gte",
        two_types,
        "its sizes make embeddings.token_type_embeddings.weight [1, 48], and model.safetensors has [2, 48]",
    ),
    (
        "gte",
        tensor("encoder.layer.2.mlp.up_gate_proj.weight", infinite),
        "encoder.layer.2.mlp.up_gate_proj.weight part 0 has values that are not finite",
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), TENSORS, ids=[message for _, _, message in TENSORS])
def test_tensors_that_do_not_fit_are_refused(name, change, message, tmp_path):
    folder = write(tmp_path, name, change)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load(folder)
    assert str(tmp_path) in str(caught.value)
    assert "#" not in str(caught.value), "the name is that of the file"


@pytest.mark.parametrize(
    ("name", "fields", "switches"),
    [
        ("t5", dict(dense_act_fn="gelu_new", is_gated_act=False), dict(activation="gelu_tanh", gated=False)),
        ("mistral", dict(sliding_window=6, is_causal=False), dict(window=6, causal=False)),
        ("mistral", dict(sliding_window=6), dict(window=5, causal=True)),
        ("qwen3", dict(rope_parameters=dict(rope_theta=7.0), rope_theta=7), dict(rope_theta=7.0)),
        ("gte", dict(type_vocab_size=0), dict(token_types=False)),
        # As transformers halves it on every save: EmbeddingGemma's is read so, with a warning.
        ("embedding_gemma", dict(sliding_window=7), dict(window=3)),
    ],
)
def test_keys_at_every_spelling(name, fields, switches, tmp_path, caplog):
    config = {key: value for key, value in FAMILIES[name].config.items() if not key.startswith("rope")}
    found = read(tmp_path, config | fields)["architecture"]
    assert {key: getattr(found, key) for key in switches} == switches
    assert ("sliding_window is 7" in caplog.text) == (fields.get("sliding_window") == 7)


# As their authors' own code has them.
_NOMIC = dict(model_type="nomic_bert", n_layer=7, n_embd=H, n_head=4, n_inner=40, vocab_size=V, type_vocab_size=2)
_NOMIC |= dict(
    layer_norm_epsilon=1e-12, rotary_emb_base=1000, n_positions=8192, max_trained_positions=160, causal=False
)
_NOMIC |= dict(activation_function="swiglu", qkv_proj_bias=False, rotary_emb_fraction=1.0)
_GTE = {**FAMILIES["gte"].config, "model_type": "new", "rope_parameters": None, "rope_theta": 20_000, "pack_qkv": True}
_GTE |= {"rope_scaling": {"type": "ntk", "factor": 8.0}}


def test_keys_of_authors_are_those_of_transformers(tmp_path):
    """The angles of GTE's own code: the base times a factor f, divided by f ** (2 / head size), at every length."""
    assert read(tmp_path, _NOMIC) == read(tmp_path, FAMILIES["nomic_bert"].config)
    switches, size = read(tmp_path, _GTE)["architecture"], H // 4
    wanted = [(20_000 * 8) ** (-2 * i / size) / 8 ** (2 / size) for i in range(size // 2)]
    found = frequencies(size, switches.rope_theta, switches.rope_scaling)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "key", "value", "says"),
    [
        (_NOMIC, "hidden_size", 96, "hidden_size stands beside n_embd, and which names count"),
        (_NOMIC, "rotary_emb_interleaved", True, "rotary_emb_interleaved is True; only False"),
        (_GTE, "rope_scaling", {"type": "ntk", "factor": 8.0, "mixed_b": 0.6}, "only a type of ntk with its factor"),
        (_GTE, "rope_scaling", {"type": "dynamic", "factor": 8.0}, "only a type of ntk with its factor is built"),
        (_GTE, "logn_attention_scale", True, "logn_attention_scale is True; only False"),
    ],
)
def test_what_is_not_built_of_authors_is_refused(config, key, value, says, tmp_path):
    with pytest.raises(UserError, match=says):
        read(tmp_path, {**config, key: value})


@pytest.mark.parametrize(("limit", "length"), [(7, 7), (1e30, 20), (10**30, 20), (None, 20)])
def test_a_tokenizer_may_have_no_limit(tmp_path, limit, length):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
    assert known_keys.token_limit(tmp_path, 20) == length


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "model.safetensors.index.json"])
def test_what_is_far_too_large_is_not_parsed(tmp_path, name):
    with (tmp_path / name).open("wb") as file:
        file.write((1 << 23).to_bytes(8, "little"))
        file.truncate((1 << 26) + 1)
    with pytest.raises(UserError, match=f"{name}: .*has more than (4194304|67108864) bytes"):
        (vocabularies.load if "tok" in name else tensor_files.read)(tmp_path)
