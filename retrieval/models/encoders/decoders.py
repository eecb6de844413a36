"""The decoders that embedders are made of: Qwen3, Qwen2, Llama and Mistral.

They have RMSNorm before the sublayers, rotary positions, causal attention whose keys are shared by groups of heads, and
a gated SiLU. Qwen3 has a norm of each head's queries and keys.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.models.architecture import Architecture
from retrieval.models.encoders import rotary
from retrieval.models.encoders.family import FAMILIES, SIZES, Family, check_heads, epsilon, sizes
from retrieval.models.known_keys import ANY, whole
from retrieval.models.transformer_config import TransformerConfig

MODULES = {
    "token_embedding": "embed_tokens",
    "layers/attention_norm": "layers.{}.input_layernorm",
    "layers/attention/query": "layers.{}.self_attn.q_proj",
    "layers/attention/key": "layers.{}.self_attn.k_proj",
    "layers/attention/value": "layers.{}.self_attn.v_proj",
    "layers/attention/output": "layers.{}.self_attn.o_proj",
    "layers/attention/query_norm": "layers.{}.self_attn.q_norm",
    "layers/attention/key_norm": "layers.{}.self_attn.k_norm",
    "layers/mlp_norm": "layers.{}.post_attention_layernorm",
    "layers/mlp_gate": "layers.{}.mlp.gate_proj",
    "layers/mlp_in": "layers.{}.mlp.up_proj",
    "layers/mlp_out": "layers.{}.mlp.down_proj",
    "final_norm": "norm",
    "classifier": "score",
}
HEADS = {"lm_head.": "lm", "score.": "classifier"}
# Buffers, and what causal language models put before the names of their encoder.
NAMES, UNUSED = {r"^model\.": ""}, r"rotary_emb\.inv_freq$"
_KEYS = {
    **dict.fromkeys(["num_key_value_heads", "head_dim", "rms_norm_eps", "sliding_window"], ANY),
    **rotary.KEYS,
    "use_sliding_window": (False,),
    "max_window_layers": ANY,  # of those that a false `use_sliding_window` turns off
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "is_causal": (True, False),
}

LLAMA = Architecture(
    family="llama",
    norm="rms",
    norms="before",
    embedding_norm=False,
    final_norm=True,
    positions="rope",
    token_types=False,
    causal=True,
    activation="silu",
    gated=True,
    biases=(),
)
QWEN2 = LLAMA.replaced(family="qwen2", biases=("query", "key", "value"))
QWEN3 = LLAMA.replaced(family="qwen3", qk_norm=True, rope_theta=1_000_000.0)
MISTRAL = LLAMA.replaced(family="mistral")


def heads(path: Path, config: Mapping[str, Any], found: Mapping[str, int]) -> dict[str, int]:
    """The switches `kv_heads` and `head_size`.

    Raises:
      UserError: the heads of keys do not divide those of queries.
    """
    shared = whole(path, config, "num_key_value_heads", default=found["num_heads"])
    if found["num_heads"] % shared:
        raise UserError(f"{path}: num_key_value_heads is {shared}, which does not divide {found['num_heads']}")
    if "head_dim" not in config:
        check_heads(path, found, SIZES["num_heads"])
    size = whole(path, config, "head_dim", default=found["hidden_size"] // found["num_heads"])
    if size % 2:
        raise UserError(f"{path}: head_dim is {size}, and rotary positions need an even number")
    return {"kv_heads": shared, "head_size": size}


def written_heads(config: TransformerConfig) -> dict[str, Any]:
    """The sizes of a config, as `heads` reads them."""
    found = {theirs: getattr(config, ours) for ours, theirs in SIZES.items()}
    return {**found, "num_key_value_heads": config.kv_heads, "head_dim": config.head_size}


def _read(path: Path, config: Mapping[str, Any], usual: Architecture, theta: float) -> dict[str, Any]:
    found = sizes(path, config, SIZES)
    switches: dict[str, Any] = heads(path, config, found) | rotary.theta(path, config, theta)
    window = config.get("sliding_window") if usual.family == "mistral" else None
    kinds = rotary.layer_kinds(path, config, found["num_layers"], (0 if window else 1, False))
    if kinds["global_every"] != (0 if window else 1):
        raise UserError(f"{path}: layer_types has local layers, and this family has them in all layers or in none")
    if window:
        # A causal window counts the token itself; without the causal mask tokens at its very distance are seen too.
        switches["reach"] = whole(path, config, "sliding_window", least=2) - config.get("is_causal", True)
    return {
        **found,
        "type_vocab_size": 1,
        "layer_norm_epsilon": epsilon(path, config, "rms_norm_eps", 1e-6),
        # Without its causal mask it is what LLM2Vec makes of a decoder (BehnamGhader et al. 2024).
        "architecture": usual.replaced(**switches, causal=config.get("is_causal", True)),
    }


def _write(config: TransformerConfig, name: str) -> dict[str, Any]:
    switches = config.architecture
    return {
        "architectures": [f"{name.capitalize()}Model"],
        "model_type": name,
        **written_heads(config),
        "rms_norm_eps": config.layer_norm_epsilon,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": config.attention_rate,
        **(
            {"sliding_window": switches.reach + switches.causal if switches.reach else None}
            if name == "mistral"
            else {}
        ),
        **({"use_sliding_window": False} if name.startswith("qwen") else {}),
        **({} if switches.causal else {"is_causal": False}),
        "rope_theta": switches.rope_theta,
        **rotary.written_scaling(switches.rope_scaling),
        "rope_parameters": rotary.written_theta(switches.rope_theta, switches.rope_scaling),
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def _register(name: str, usual: Architecture, theta: float, biases: tuple[bool, ...] = (False,)) -> None:
    FAMILIES.register(
        name,
        Family(
            usual,
            SIZES,
            {**_KEYS, "attention_bias": biases},
            functools.partial(_read, usual=usual, theta=theta),
            MODULES,
            functools.partial(_write, name=name),
            heads=HEADS,
            names=NAMES,
            unused=UNUSED,
            prefix="model.",
        ),
    )


_register("qwen3", QWEN3, 10_000.0)  # of configs that do not say
_register("qwen2", QWEN2, 10_000.0, (False, True))  # which has its biases whatever the key says
_register("llama", LLAMA, 10_000.0)
_register("mistral", MISTRAL, 10_000.0)
