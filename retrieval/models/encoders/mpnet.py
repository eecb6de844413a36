"""MPNet (Song et al. 2020): a BERT without token types, with T5's bias of scores by distance."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.models.architecture import Architecture
from retrieval.models.encoders.family import FAMILIES, SIZES, Family, check_heads, epsilon, sizes
from retrieval.models.known_keys import ANY, shown
from retrieval.models.relative_bias import BUCKETS
from retrieval.models.transformer_config import TransformerConfig

_PAD_ID, _SKIPPED = 1, 2  # positions count from the id of padding + 1
_EPSILON = "layer_norm_eps"

ARCHITECTURE = Architecture(family="mpnet", token_types=False, relative_bias=True)


def _read(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    if (pad_id := config.get("pad_token_id", _PAD_ID)) != _PAD_ID:
        raise UserError(f"{path}: pad_token_id is {shown(pad_id)}; only {_PAD_ID} fits")
    found = sizes(path, config, SIZES)
    check_heads(path, found, SIZES["num_heads"])
    found["max_length"] -= _SKIPPED
    if found["max_length"] < 1:
        raise UserError(f"{path}: {SIZES['max_length']} leaves no position for a text; copy the file again")
    return {
        **found,
        "type_vocab_size": 1,
        "layer_norm_epsilon": epsilon(path, config, _EPSILON, 1e-12),
        "architecture": ARCHITECTURE,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {
        "architectures": ["MPNetModel"],
        "model_type": "mpnet",
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        SIZES["max_length"]: config.max_length + _SKIPPED,
        _EPSILON: config.layer_norm_epsilon,
        "relative_attention_num_buckets": BUCKETS,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_rate,
        "pad_token_id": _PAD_ID,
        "dtype": "float32",
    }


FAMILIES.register(
    "mpnet",
    Family(
        ARCHITECTURE,
        SIZES,
        {
            _EPSILON: ANY,
            "hidden_act": ("gelu",),
            "relative_attention_num_buckets": (BUCKETS,),
        },
        _read,
        {
            "token_embedding": "embeddings.word_embeddings",
            "position_embedding": "embeddings.position_embeddings",
            "embedding_norm": "embeddings.LayerNorm",
            "relative_bias": "encoder.relative_attention_bias",
            "layers/attention/query": "encoder.layer.{}.attention.attn.q",
            "layers/attention/key": "encoder.layer.{}.attention.attn.k",
            "layers/attention/value": "encoder.layer.{}.attention.attn.v",
            "layers/attention/output": "encoder.layer.{}.attention.attn.o",
            "layers/attention_norm": "encoder.layer.{}.attention.LayerNorm",
            "layers/mlp_in": "encoder.layer.{}.intermediate.dense",
            "layers/mlp_out": "encoder.layer.{}.output.dense",
            "layers/mlp_norm": "encoder.layer.{}.output.LayerNorm",
            "pooler": "classifier.dense",
            "classifier": "classifier.out_proj",
        },
        _write,
        heads={"lm_head.": "lm", "classifier.dense.": "pooler", "classifier.": "classifier"},
        names={r"^mpnet\.": "", r"\.gamma$": ".weight", r"\.beta$": ".bias"},  # as transformers 5.3 saves them
        unused=r"^(embeddings\.position_ids$|pooler\.)",
        skipped_positions=_SKIPPED,
        prefix="mpnet.",
    ),
)
