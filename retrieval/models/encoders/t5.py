"""The encoder of T5 (Raffel et al. 2020), of which GTR and sentence-T5 are made; 1.1 and mT5 have a gated MLP."""

from collections.abc import Mapping
from typing import Any

from retrieval.models.architecture import Architecture
from retrieval.models.encoders.family import FAMILIES, Family, Settings, of_layers, pairs
from retrieval.models.positions import BUCKETS
from retrieval.models.transformer_config import TransformerConfig

# `feed_forward_proj` -> `is_gated_act` and, in our words, `dense_act_fn`, which count more where they are there.
_MLPS = {"relu": (False, "relu"), "gated-gelu": (True, "gelu_tanh"), "gated-silu": (True, "silu")}
_ACTIVATIONS = {"relu": "relu", "gelu_new": "gelu_tanh", "gelu": "gelu", "silu": "silu"}
_MLP = "encoder.block.{}.layer.1.DenseReluDense"


def _read(settings: Settings, sizes: Mapping[str, int]) -> dict[str, Any]:
    gated, activation = _MLPS[settings.get("feed_forward_proj", "relu")]
    if "dense_act_fn" in settings:
        activation = _ACTIVATIONS[settings.get("dense_act_fn")]
    return {"gated": settings.get("is_gated_act", gated), "activation": activation}


def _write(config: TransformerConfig) -> dict[str, Any]:
    mlp = config.architecture.gated, config.architecture.activation
    return {
        "num_decoder_layers": config.num_layers,
        "feed_forward_proj": next((name for name, other in _MLPS.items() if other == mlp), "relu"),
    }


FAMILIES.register(
    "t5",
    Family(
        Architecture(
            family="t5",
            norm="rms",
            norms="before",
            embedding_norm=False,
            final_norm=True,
            positions="none",
            token_types=False,
            relative_bias=True,
            activation="relu",
            biases=(),
            score_size=1,
        ),
        {
            "token_embedding": "shared",
            "relative_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
            **of_layers(
                "encoder.block.{}",
                "layer.0.SelfAttention.q layer.0.SelfAttention.k layer.0.SelfAttention.v layer.0.SelfAttention.o "
                "layer.0.layer_norm layer.1.layer_norm layer.1.DenseReluDense.wi layer.1.DenseReluDense.wo",
            ),
            "final_norm": "encoder.final_layer_norm",
        },
        "T5EncoderModel",
        sizes=pairs(
            "vocab_size=vocab_size num_layers=num_layers hidden_size=d_model num_heads=num_heads mlp_size=d_ff"
        ),
        head_sizes=dict(head_size="d_kv"),
        defaults=dict(head_size=64),
        epsilon=("layer_norm_epsilon", 1e-6),
        rates=dict(dropout="dropout_rate"),
        written={
            "relative_attention_num_buckets": BUCKETS,
            "relative_attention_max_distance": 128,
            "is_encoder_decoder": True,
            "pad_token_id": 0,
            "eos_token_id": 1,
        },
        keys={
            "feed_forward_proj": tuple(_MLPS),
            "dense_act_fn": tuple(_ACTIVATIONS),
            "is_gated_act": (True, False),
            **dict.fromkeys(("is_decoder", "add_cross_attention"), (False,)),
        },
        ignored="n_positions scale_decoder_outputs is_encoder_decoder",
        read=_read,
        write=_write,
        gated_modules={"layers/mlp_gate": f"{_MLP}.wi_0", "layers/mlp_in": f"{_MLP}.wi_1"},
        names={r"^encoder\.embed_tokens\.": "shared."},
        unused=r"^(decoder|lm_head)\.",
    ),
)
