"""ModernBERT (Warner et al. 2024): rotary positions, gated GELU, and two of three layers that are local."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.models.architecture import Architecture
from retrieval.models.encoders import rotary
from retrieval.models.encoders.family import FAMILIES, SIZES, Family, check_heads, epsilon, sizes
from retrieval.models.known_keys import ANY, whole
from retrieval.models.transformer_config import TransformerConfig

# Of the published vocabulary; its class has them by default, and refuses a padding that the vocabulary does not have.
_IDS = dict(bos_token_id=50281, cls_token_id=50281, eos_token_id=50282, sep_token_id=50282, pad_token_id=50283)
_EVERY = "global_attn_every_n_layers"
_THETAS = ("global_rope_theta", "local_rope_theta")

ARCHITECTURE = Architecture(
    family="modernbert",
    norm="layer_no_bias",
    norms="before",
    first_norm=False,
    final_norm=True,
    positions="rope",
    token_types=False,
    gated=True,
    biases=(),
    rope_theta=160_000.0,
    local_theta=10_000.0,
    reach=64,
    global_every=3,
    global_first=True,
)


def _read(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    found = sizes(path, config, SIZES)
    check_heads(path, found, SIZES["num_heads"])
    window = whole(path, config, "local_attention", default=128, least=2)
    if window % 2:
        raise UserError(f"{path}: local_attention is {window}, and an even number of tokens is needed")
    switches = {
        "reach": window // 2,
        **rotary.layer_kinds(path, config, found["num_layers"], (whole(path, config, _EVERY, default=3), True)),
        **rotary.thetas(path, config, _THETAS, (160_000.0, 10_000.0)),
    }
    return {
        **found,
        "type_vocab_size": 1,
        "layer_norm_epsilon": epsilon(path, config, "norm_eps", 1e-5),
        "architecture": ARCHITECTURE.replaced(**switches),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    switches = config.architecture
    theta, local = switches.rope_theta, switches.local_theta or switches.rope_theta
    return {
        "architectures": ["ModernBertModel"],
        "model_type": "modernbert",
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "norm_eps": config.layer_norm_epsilon,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_activation": "gelu",
        "attention_dropout": config.attention_rate,
        "local_attention": 2 * switches.reach,
        _EVERY: switches.global_every or 1,
        "layer_types": rotary.written_kinds(config.num_layers, switches.locality()),
        **dict(zip(_THETAS, (theta, local))),
        "rope_parameters": {
            "full_attention": rotary.written_theta(theta, switches.rope_scaling),
            "sliding_attention": rotary.written_theta(local, ""),
        },
        **{key: number if number < config.vocab_size else None for key, number in _IDS.items()},
        "dtype": "float32",
    }


FAMILIES.register(
    "modernbert",
    Family(
        ARCHITECTURE,
        SIZES,
        {
            **dict.fromkeys([*_THETAS, "norm_eps", "local_attention", "classifier_activation", _EVERY], ANY),
            **rotary.KEYS,
            "rope_scaling": (),  # of all layers, which no published one has
            "norm_bias": (False,),
            "attention_bias": (False,),
            "mlp_bias": (False,),
            "hidden_activation": ("gelu",),
            "position_embedding_type": ANY,  # 'absolute' in published files, which have rotary positions
            "layer_norm_eps": ANY,  # of no norm: theirs is `norm_eps`
        },
        _read,
        {
            "token_embedding": "embeddings.tok_embeddings",
            "embedding_norm": "embeddings.norm",
            "layers/attention/query": "layers.{}.attn.Wqkv#0",
            "layers/attention/key": "layers.{}.attn.Wqkv#1",
            "layers/attention/value": "layers.{}.attn.Wqkv#2",
            "layers/attention/output": "layers.{}.attn.Wo",
            "layers/attention_norm": "layers.{}.attn_norm",
            "layers/mlp_gate": "layers.{}.mlp.Wi#0",
            "layers/mlp_in": "layers.{}.mlp.Wi#1",
            "layers/mlp_out": "layers.{}.mlp.Wo",
            "layers/mlp_norm": "layers.{}.mlp_norm",
            "final_norm": "final_norm",
            "dense": "head.dense",
            "norm": "head.norm",
            "": "decoder",
            "pooler": "head.dense",
            "pooler_norm": "head.norm",
            "classifier": "classifier",
        },
        _write,
        heads={"linear.": "late", "head.": "mlm", "decoder.": "mlm", "classifier.": "classifier"},
        names={r"^model\.": ""},
        prefix="model.",
    ),
)
