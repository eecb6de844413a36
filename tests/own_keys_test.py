"""Encoders whose own code has other names than transformers: the same model by either, and keys that are refused."""

import json

import numpy as np
import pytest

from retrieval.errors import UserError
from retrieval.models import rope
from retrieval.models.encoders.family import FAMILIES, read

SIZES = dict(vocab_size=97, type_vocab_size=2)
NOMIC = dict(n_layer=2, n_embd=48, n_head=3, n_inner=40, layer_norm_epsilon=1e-6, rotary_emb_base=500, n_positions=8192)
NOMIC |= SIZES | dict(activation_function="swiglu", qkv_proj_bias=False, rotary_emb_fraction=1.0, causal=False)
GTE = dict(num_hidden_layers=2, hidden_size=48, num_attention_heads=3, intermediate_size=40, **SIZES)
GTE |= dict(max_position_embeddings=8192, rope_theta=20_000, rope_scaling={"type": "ntk", "factor": 8.0}, pack_qkv=True)


def sizes(tmp_path, model_type, config):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": model_type, **config}))
    return read(path)[1]


def test_nomics_own_names_are_those_of_transformers(tmp_path):
    """Its texts are those that it was trained on: behind them are other angles."""
    native = dict(num_hidden_layers=2, hidden_size=48, num_attention_heads=3, intermediate_size=40, layer_norm_eps=1e-6)
    native |= SIZES | dict(rope_parameters={"rope_type": "default", "rope_theta": 500}, max_position_embeddings=2048)
    own = sizes(tmp_path, "nomic_bert", NOMIC)
    assert own == sizes(tmp_path, "nomic_bert", native)
    assert own["max_length"] == 2048 and own["architecture"].rope_theta == 500


def test_the_angles_of_gte_are_those_of_its_own_code(tmp_path):
    """theta and the scaling of every length, as its NTKScalingRotaryEmbedding has them."""
    switches = sizes(tmp_path, "new", GTE)["architecture"]
    exponent = np.arange(0, 16, 2) / 16
    expected = 1 / (20_000 * 8) ** exponent / 8 ** (2 / 16)
    found = rope.frequencies(16, switches.rope_theta, switches.rope_scaling)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert not sizes(tmp_path, "new", {**GTE, "type_vocab_size": 0})["architecture"].token_types


@pytest.mark.parametrize(
    ("name", "key", "value", "says"),
    [
        ("nomic_bert", "hidden_size", 96, "hidden_size stands beside n_embd, and which names count"),
        ("nomic_bert", "rotary_emb_interleaved", True, "rotary_emb_interleaved is True; only False"),
        ("nomic_bert", "num_experts", 8, "num_experts is 8, and whether that changes a result is not known"),
        (
            "new",
            "rope_scaling",
            {"type": "ntk", "factor": 8.0, "mixed_b": 0.6},
            "only a type of ntk with its factor is built",
        ),
        ("new", "rope_scaling", {"type": "dynamic", "factor": 8.0}, "only a type of ntk with its factor is built"),
        ("new", "logn_attention_scale", True, "logn_attention_scale is True; only False"),
    ],
)
def test_what_is_not_built_is_refused(name, key, value, says, tmp_path):
    with pytest.raises(UserError, match=says):
        sizes(tmp_path, name, {**(NOMIC if name == "nomic_bert" else GTE), key: value})


@pytest.mark.parametrize("name", ["nomic_bert", "gte"])
def test_a_tensor_has_one_name_whoever_wrote_it(name):
    """Parts of fused ones too."""
    family = FAMILIES[name]
    fused = family.modules["layers/attention/key"].format(1).replace("#", ".weight#")
    assert family.name("layers.1.self_attn.k_proj.weight") == fused
    gate = family.modules["layers/mlp_gate"].format(1)
    gate = gate.replace("#", ".weight#") if "#" in gate else f"{gate}.weight"
    assert family.name(f"{name}.layers.1.mlp.gate_proj.weight") == gate
    assert family.name(fused) == fused
