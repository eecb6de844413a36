"""NomicBERT (Nussbaum et al. 2024): a BERT with rotary positions and a gated SiLU, without biases of linear layers.

Published configs have the author's own names; transformers 5 writes BERT's. Texts are bounded by the positions that it
was trained on: with longer ones its authors change the angles.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.models.architecture import Architecture
from retrieval.models.encoders import rotary
from retrieval.models.encoders.family import FAMILIES, SIZES, Family, check_heads, epsilon, positive, sizes
from retrieval.models.known_keys import ANY, whole
from retrieval.models.transformer_config import TransformerConfig

_SIZES = SIZES | dict(type_vocab_size="type_vocab_size")
_TRAINED = "max_trained_positions"
_OWN_SIZES = _SIZES | dict(
    num_layers="n_layer", hidden_size="n_embd", num_heads="n_head", mlp_size="n_inner", max_length=_TRAINED
)
_EPSILON, _OWN_EPSILON = "layer_norm_eps", "layer_norm_epsilon"
_NAMES = {*_SIZES.values(), _EPSILON, "hidden_act", *rotary.KEYS}
_OWN_NAMES = {*_OWN_SIZES.values(), _OWN_EPSILON, "activation_function", "rotary_emb_base"}

ARCHITECTURE = Architecture(
    family="nomic_bert", positions="rope", activation="silu", gated=True, biases=(), rope_theta=1000.0
)


def _read(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    own = "n_embd" in config
    keys = _OWN_SIZES if own else _SIZES
    ours, others = (_OWN_NAMES, _NAMES) if own else (_NAMES, _OWN_NAMES)
    if both := [key for key in others if key in config and key not in ours]:
        one = "n_embd" if own else "hidden_size"
        raise UserError(f"{path}: {both[0]} stands beside {one}, and which names count is not known: copy it again")
    defaults = {_TRAINED: 2048, "max_position_embeddings": 2048, "type_vocab_size": 2}
    found = sizes(path, config, keys, **defaults)
    check_heads(path, found, keys["num_heads"])
    if own:
        turned = {"rope_theta": positive(path, config, "rotary_emb_base", 10_000.0)}
    else:
        turned = rotary.theta(path, config, 1000.0)
    head_size = whole(path, config, "head_dim", default=found["hidden_size"] // found["num_heads"])
    return {
        **found,
        "layer_norm_epsilon": epsilon(path, config, _OWN_EPSILON if own else _EPSILON, 1e-12),
        "architecture": ARCHITECTURE.replaced(head_size=head_size, **turned),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    switches = config.architecture
    return {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        "head_dim": config.head_size,
        _EPSILON: config.layer_norm_epsilon,
        "hidden_act": "silu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_rate,
        "rope_parameters": rotary.written_theta(switches.rope_theta, switches.rope_scaling),
        "pad_token_id": 0,
        "dtype": "float32",
    }


FAMILIES.register(
    "nomic_bert",
    Family(
        ARCHITECTURE,
        _SIZES,
        {
            **dict.fromkeys([*_OWN_SIZES.values(), _EPSILON, _OWN_EPSILON, "head_dim", "rotary_emb_base"], ANY),
            **rotary.KEYS,
            "hidden_act": ("silu",),
            # The author's own, with the values that make the model that this is.
            "activation_function": ("swiglu",),
            "rotary_emb_fraction": (1, 1.0),
            "rotary_emb_interleaved": (False,),
            "rotary_emb_scale_base": (),
            **dict.fromkeys(["qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"], (False,)),
            **dict.fromkeys(["prenorm", "causal", "use_rms_norm"], (False,)),
            **dict.fromkeys(["parallel_block", "parallel_block_tied_norm"], (False,)),
            "scale_attn_by_inverse_layer_idx": (False,),
            "scale_attn_weights": (True,),
            # These change how it is computed, what has no place here, or the angles of texts that are too long.
            **dict.fromkeys(["rotary_scaling_factor", "n_positions", "reorder_and_upcast_attn", "auto_map"], ANY),
            **dict.fromkeys(["fused_bias_fc", "fused_dropout_add_ln", "use_flash_attn", "use_xentropy"], ANY),
            **dict.fromkeys(["attn_pdrop", "embd_pdrop", "resid_pdrop", "dense_seq_output"], ANY),
            **dict.fromkeys(["pad_vocab_size_multiple", "summary_activation", "summary_first_dropout"], ANY),
            **dict.fromkeys(["summary_proj_to_labels", "summary_type", "summary_use_proj"], ANY),
        },
        _read,
        {
            "token_embedding": "embeddings.word_embeddings",
            "type_embedding": "embeddings.token_type_embeddings",
            "embedding_norm": "emb_ln",
            "layers/attention/query": "encoder.layers.{}.attn.Wqkv#0",
            "layers/attention/key": "encoder.layers.{}.attn.Wqkv#1",
            "layers/attention/value": "encoder.layers.{}.attn.Wqkv#2",
            "layers/attention/output": "encoder.layers.{}.attn.out_proj",
            "layers/attention_norm": "encoder.layers.{}.norm1",
            "layers/mlp_in": "encoder.layers.{}.mlp.fc11",
            "layers/mlp_gate": "encoder.layers.{}.mlp.fc12",
            "layers/mlp_out": "encoder.layers.{}.mlp.fc2",
            "layers/mlp_norm": "encoder.layers.{}.norm2",
            "pooler": "pooler.dense",
            "classifier": "classifier",
        },
        _write,
        heads={"cls.": "lm", "lm_head.": "lm", "pooler.": "pooler", "classifier.": "classifier"},
        names={
            r"^(nomic_)?bert\.": "",
            # Those that transformers has while it computes.
            r"^embeddings\.LayerNorm\.": "emb_ln.",
            r"^layers\.": "encoder.layers.",
            **{rf"\.self_attn\.{name}_proj\.(\w+)$": rf".attn.Wqkv.\1#{part}" for part, name in enumerate("qkv")},
            r"\.self_attn\.o_proj\.": ".attn.out_proj.",
            r"\.post_attention_layernorm\.": ".norm1.",
            r"\.post_mlp_layernorm\.": ".norm2.",
            r"\.mlp\.up_proj\.": ".mlp.fc11.",
            r"\.mlp\.gate_proj\.": ".mlp.fc12.",
            r"\.mlp\.down_proj\.": ".mlp.fc2.",
        },
        prefix="nomic_bert.",
    ),
)
