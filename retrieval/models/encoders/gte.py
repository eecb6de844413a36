"""GTE 1.5 (Zhang et al. 2024), Alibaba's "new" BERT: rotary positions and a gated GELU.

On the hub its `model_type` is 'new', and its angles are scaled in a way of its own; transformers 5 calls it 'gte'.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.models.architecture import MATRICES, Architecture
from retrieval.models.encoders import rotary
from retrieval.models.encoders.family import FAMILIES, MOST, SIZES, Family, check_heads, epsilon, positive, sizes
from retrieval.models.known_keys import ANY, shown, whole
from retrieval.models.transformer_config import TransformerConfig

_EPSILON, _TYPES = "layer_norm_eps", "type_vocab_size"

ARCHITECTURE = Architecture(
    family="gte",
    positions="rope",
    gated=True,
    biases=tuple(name for name in MATRICES if name not in ("mlp_in", "mlp_gate")),
    rope_theta=160_000.0,
)
# Keys of the hub's configs, which transformers keeps where it saves one as its own.
_HUB_KEYS = {
    "position_embedding_type": ("rope",),
    "layer_norm_type": ("layer_norm",),
    "logn_attention_scale": (False,),
    "pack_qkv": (True,),
    # These change how it is computed, or an attention that is off.
    **dict.fromkeys(["logn_attention_clip1", "unpad_inputs", "use_memory_efficient_attention", "auto_map"], ANY),
}


def _read(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    found = sizes(path, config, SIZES)
    check_heads(path, found, SIZES["num_heads"])
    types = whole(path, config, _TYPES, MOST, 1, least=0)
    return {
        **found,
        "type_vocab_size": max(types, 1),
        "layer_norm_epsilon": epsilon(path, config, _EPSILON, 1e-12),
        "architecture": ARCHITECTURE.replaced(token_types=types > 0, **rotary.theta(path, config, 160_000.0)),
    }


def _read_new(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The hub's: of a factor f, angles of the base times f, all divided by f to the power of 2 / head size."""
    scaling = config.get("rope_scaling", {})
    if scaling and (not isinstance(scaling, dict) or set(scaling) != {"type", "factor"} or scaling["type"] != "ntk"):
        raise UserError(f"{path}: rope_scaling is {shown(scaling)}; only a type of ntk with its factor is built here")
    factor = positive(path, scaling, "factor", 1.0)
    turned: dict[str, Any] = {"rope_theta": positive(path, config, "rope_theta", 10_000.0) * factor}
    if factor != 1:
        found = sizes(path, config, SIZES)
        turned |= {"rope_type": "linear", "factor": factor ** (2 * found["num_heads"] / found["hidden_size"])}
    others = {key: value for key, value in config.items() if key not in rotary.KEYS}
    return _read(path, others | {"rope_parameters": turned})


def _write(config: TransformerConfig) -> dict[str, Any]:
    switches = config.architecture
    return {
        "architectures": ["GteModel"],
        "model_type": "gte",
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        _TYPES: config.type_vocab_size if switches.token_types else 0,
        _EPSILON: config.layer_norm_epsilon,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_rate,
        "rope_parameters": rotary.written_theta(switches.rope_theta, switches.rope_scaling),
        "pad_token_id": 1,
        "dtype": "float32",
    }


def _register(name: str, read: Any) -> None:
    FAMILIES.register(
        name,
        Family(
            ARCHITECTURE,
            SIZES,
            {**dict.fromkeys([_TYPES, _EPSILON], ANY), **rotary.KEYS, "hidden_act": ("gelu",), **_HUB_KEYS},
            read,
            {
                "token_embedding": "embeddings.word_embeddings",
                "type_embedding": "embeddings.token_type_embeddings",
                "embedding_norm": "embeddings.LayerNorm",
                "layers/attention/query": "encoder.layer.{}.attention.qkv_proj#0",
                "layers/attention/key": "encoder.layer.{}.attention.qkv_proj#1",
                "layers/attention/value": "encoder.layer.{}.attention.qkv_proj#2",
                "layers/attention/output": "encoder.layer.{}.attention.o_proj",
                "layers/attention_norm": "encoder.layer.{}.attn_ln",
                "layers/mlp_in": "encoder.layer.{}.mlp.up_gate_proj#0",
                "layers/mlp_gate": "encoder.layer.{}.mlp.up_gate_proj#1",
                "layers/mlp_out": "encoder.layer.{}.mlp.down_proj",
                "layers/mlp_norm": "encoder.layer.{}.mlp_ln",
                "dense": "lm_head.dense",
                "norm": "lm_head.norm",
                "": "lm_head.decoder",
                "pooler": "pooler.dense",
                "classifier": "classifier",
            },
            _write,
            heads={"lm_head.": "mlm", "pooler.": "pooler", "classifier.": "classifier"},
            names={
                r"^(new|gte)\.": "",
                # Those that transformers has while it computes.
                r"^lm_head\.layer_norm\.": "lm_head.norm.",
                r"^layers\.": "encoder.layer.",
                **{
                    rf"\.self_attn\.{name}_proj\.(\w+)$": rf".attention.qkv_proj.\1#{n}" for n, name in enumerate("qkv")
                },
                **{
                    rf"\.mlp\.{name}_proj\.(\w+)$": rf".mlp.up_gate_proj.\1#{n}"
                    for n, name in enumerate(("up", "gate"))
                },
                r"\.self_attn\.o_proj\.": ".attention.o_proj.",
                r"\.post_attention_layernorm\.": ".attn_ln.",
                r"\.post_mlp_layernorm\.": ".mlp_ln.",
            },
            prefix="new.",
        ),
    )


_register("gte", _read)
_register("new", _read_new)
