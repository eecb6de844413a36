"""Gemma 3 (2025), the text model, and EmbeddingGemma, whose attention is not causal.

Norms stand before and after each sublayer, and one layer in six sees the whole text.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.models.architecture import Architecture
from retrieval.models.encoders import decoders, rotary
from retrieval.models.encoders.family import FAMILIES, SIZES, Family, epsilon, sizes
from retrieval.models.known_keys import ANY, whole
from retrieval.models.transformer_config import TransformerConfig

_log = logging.getLogger(__name__)

_THETAS = ("rope_theta", "rope_local_base_freq")
_PATTERN = ("sliding_window_pattern", "_sliding_window_pattern")
_FLAG = "use_bidirectional_attention"
_OTHERS = ("head_dim", "num_key_value_heads", "rms_norm_eps", "query_pre_attn_scalar", "sliding_window")

ARCHITECTURE = Architecture(
    family="gemma3_text",
    norm="rms_plus_one",
    norms="around",
    embedding_norm=False,
    final_norm=True,
    positions="rope",
    token_types=False,
    causal=True,
    activation="gelu_tanh",
    gated=True,
    biases=(),
    qk_norm=True,
    embedding_scale=True,
    rope_theta=1_000_000.0,
    local_theta=10_000.0,
    reach=4095,
    global_every=6,
)
_MODULES = decoders.MODULES | {
    "layers/attention_out_norm": "layers.{}.post_attention_layernorm",
    "layers/mlp_norm": "layers.{}.pre_feedforward_layernorm",
    "layers/mlp_out_norm": "layers.{}.post_feedforward_layernorm",
}


def _read(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    found = sizes(path, config, SIZES)
    window = whole(path, config, "sliding_window", default=4096, least=2)
    causal = not config.get(_FLAG, False)
    if not causal and window % 2:
        _log.warning(
            "%s: sliding_window is %d. An odd one may have been halved by a version of transformers that saved it: "
            "EmbeddingGemma's is 512",
            path,
            window,
        )
    every = next((whole(path, config, key) for key in _PATTERN if key in config), 6)
    switches = {
        **decoders.heads(path, {"head_dim": 256, **config}, found),
        "score_size": whole(path, config, "query_pre_attn_scalar", default=256),
        "causal": causal,
        "reach": window - 1 if causal else window // 2,
        **rotary.layer_kinds(path, config, found["num_layers"], (every, False)),
        **rotary.thetas(path, config, _THETAS, (1_000_000.0, 10_000.0)),
    }
    return {
        **found,
        "type_vocab_size": 1,
        "layer_norm_epsilon": epsilon(path, config, "rms_norm_eps", 1e-6),
        "architecture": ARCHITECTURE.replaced(**switches),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    switches = config.architecture
    theta, local = switches.rope_theta, switches.local_theta or switches.rope_theta
    return {
        "architectures": ["Gemma3TextModel"],
        "model_type": "gemma3_text",
        **decoders.written_heads(config),
        "rms_norm_eps": config.layer_norm_epsilon,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attention_dropout": config.attention_rate,
        "query_pre_attn_scalar": switches.score_size or config.head_size,
        _FLAG: not switches.causal,
        # What was read: libraries halve it when they load it.
        "sliding_window": switches.reach + 1 if switches.causal else 2 * switches.reach,
        "layer_types": rotary.written_kinds(config.num_layers, switches.locality()),
        **dict(zip(_THETAS, (theta, local))),
        **rotary.written_scaling(switches.rope_scaling),
        "rope_parameters": {
            "full_attention": rotary.written_theta(theta, switches.rope_scaling),
            "sliding_attention": rotary.written_theta(local, ""),
        },
        "dtype": "float32",
    }


FAMILIES.register(
    "gemma3_text",
    Family(
        ARCHITECTURE,
        SIZES,
        {
            **dict.fromkeys([*_THETAS, *_PATTERN, *_OTHERS], ANY),
            **rotary.KEYS,
            _FLAG: (True, False),
            "hidden_activation": ("gelu_pytorch_tanh",),
            "attention_bias": (False,),
            "attn_logit_softcapping": (),  # null, or it is refused
            "final_logit_softcapping": ANY,  # of logits, which embedders have not
        },
        _read,
        _MODULES,
        _write,
        heads=decoders.HEADS,
        names=decoders.NAMES,
        unused=decoders.UNUSED,
        prefix="model.",
    ),
)
