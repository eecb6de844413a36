"""The decoders that embedders are made of: Qwen3, Qwen2, Llama, Mistral, and the text model of Gemma 3; and EuroBERT.

They have RMSNorm before the sublayers, rotary positions, causal attention whose keys are shared by groups of heads, and
a gated MLP. Qwen3 has a norm of each head's queries and keys. So has Gemma 3 (2025), with norms behind the sublayers
too, and one layer in six that sees the whole text. EmbeddingGemma's attention is not causal, nor is that of EuroBERT,
which is Llama otherwise (Boizard et al. 2025).
"""

import functools
import logging
from collections.abc import Mapping
from typing import Any

from retrieval.models.architecture import Architecture
from retrieval.models.encoders import rotary
from retrieval.models.encoders.family import FAMILIES, Family, Settings, of_layers, pairs
from retrieval.models.encoders.rotary import LAYERS, Angles
from retrieval.models.known_keys import ANY
from retrieval.models.transformer_config import TransformerConfig

_log = logging.getLogger(__name__)

MODULES = {
    **of_layers(
        "layers.{}",
        "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj input_layernorm post_attention_layernorm "
        "mlp.up_proj mlp.down_proj mlp.gate_proj",
    ),
    **pairs("""
        layers/attention/query_norm=layers.{}.self_attn.q_norm layers/attention/key_norm=layers.{}.self_attn.k_norm
        token_embedding=embed_tokens final_norm=norm classifier=score
    """),
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
GEMMA3 = LLAMA.replaced(
    family="gemma3_text",
    norm="rms_plus_one",
    norms="around",
    activation="gelu_tanh",
    qk_norm=True,
    embedding_scale=True,
    rope_theta=1_000_000.0,
    local_theta=10_000.0,
    window=4095,
    global_every=6,
)
_PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern")
_BOTH_WAYS = "use_bidirectional_attention"
_WINDOW, _SCALE = "sliding_window", "query_pre_attn_scalar"


def _read(settings: Settings, sizes: Mapping[str, int], has_window: bool) -> dict[str, Any]:
    # Without its causal mask it is what LLM2Vec makes of a decoder (BehnamGhader et al. 2024).
    causal, is_local = settings.get("is_causal", True), has_window and _WINDOW in settings
    if rotary.layer_kinds(settings, sizes["num_layers"], (not is_local, False))["global_every"] != (not is_local):
        raise settings.error(f"{LAYERS} has local layers, and this family has them in all layers or in none")
    # A causal window counts the token itself; without the causal mask tokens at its very distance are seen too.
    window = {"window": settings.whole(_WINDOW, least=2) - causal} if is_local else {}
    return {"causal": causal, **window}


def _write(config: TransformerConfig, has_window: bool) -> dict[str, Any]:
    window, causal = config.architecture.window, config.architecture.causal
    written = {_WINDOW: window + causal if window else None} if has_window else {}
    return written | ({} if causal else {"is_causal": False})


def _read_gemma(settings: Settings, sizes: Mapping[str, int]) -> dict[str, Any]:
    window, causal = settings.whole(_WINDOW, 4096, least=2), not settings.get(_BOTH_WAYS, False)
    if not causal and window % 2:
        halved = "An odd one may have been halved by transformers when it was saved: EmbeddingGemma's is 512"
        _log.warning("%s: sliding_window is %d. %s", settings.path, window, halved)
    every = next(iter([settings.whole(key) for key in _PATTERNS if key in settings]), 6)
    return {
        "score_size": settings.whole(_SCALE, 256),
        "causal": causal,
        "window": window - 1 if causal else window // 2,
        **rotary.layer_kinds(settings, sizes["num_layers"], (every, False)),
    }


def _write_gemma(config: TransformerConfig) -> dict[str, Any]:
    switches = config.architecture
    return {
        _SCALE: switches.score_size or config.head_size,
        _BOTH_WAYS: not switches.causal,
        # What was read: libraries halve it when they load it.
        _WINDOW: switches.window + 1 if switches.causal else 2 * switches.window,
        **rotary.written_kinds(config.num_layers, switches.locality()),
    }


_SHARED: Any = dict(
    head_sizes=dict(kv_heads="num_key_value_heads", head_size="head_dim"),
    epsilon=("rms_norm_eps", 1e-6),
    rates=dict(attention_rate="attention_dropout"),
    heads={"lm_head.": "lm", "score.": "classifier"},
    # Buffers, and what causal language models put before the names of their encoder.
    names={r"^model\.": ""},
    unused=r"rotary_emb\.inv_freq$",
    prefix="model.",
)


def _register(usual: Architecture, of_torch: str, has_window: bool = False, ignored: str = "", **written: Any) -> None:
    keys = {"use_sliding_window": (False,), "mlp_bias": (False,), "is_causal": (True, False), LAYERS: ANY}
    family = Family(
        usual,
        MODULES,
        of_torch,
        written={"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": True, **written},
        keys={**keys, **({_WINDOW: ANY} if has_window else {})},
        ignored=f"{ignored} max_window_layers" + f" {_WINDOW}" * (not has_window),  # without a `use_sliding_window`
        angles=Angles({"rope_theta": 10_000.0}),  # of configs that do not say
        read=functools.partial(_read, has_window=has_window),
        write=functools.partial(_write, has_window=has_window),
        **_SHARED,
    )
    FAMILIES.register(usual.family, family)


_register(LLAMA, "LlamaModel")
_register(LLAMA.replaced(family="mistral"), "MistralModel", has_window=True)
_register(
    LLAMA.replaced(family="qwen2", biases=("query", "key", "value")),
    "Qwen2Model",
    ignored="attention_bias",  # it has them whatever the key says
    use_sliding_window=False,
)
_register(LLAMA.replaced(family="qwen3", qk_norm=True, rope_theta=1_000_000.0), "Qwen3Model", use_sliding_window=False)
FAMILIES.register(
    "eurobert",
    Family(
        LLAMA.replaced(family="eurobert", causal=False),
        MODULES,
        "EuroBertModel",
        # Its usual padding lies outside of small vocabularies, which the library refuses.
        written={"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "pad_token_id": None},
        keys={"mlp_bias": (False,), "pad_token_id": ANY},
        angles=Angles({"rope_theta": 10_000.0}),
        **_SHARED | {"epsilon": ("rms_norm_eps", 1e-5)},
    ),
)
FAMILIES.register(
    "gemma3_text",
    Family(
        GEMMA3,
        MODULES
        | pairs("""
            layers/attention_out_norm=layers.{}.post_attention_layernorm
            layers/mlp_norm=layers.{}.pre_feedforward_layernorm
            layers/mlp_out_norm=layers.{}.post_feedforward_layernorm
        """),
        "Gemma3TextModel",
        defaults=dict(head_size=256),
        written={"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False},
        keys={
            **dict.fromkeys([*_PATTERNS, _SCALE, _WINDOW, LAYERS], ANY),
            _BOTH_WAYS: (True, False),
            "attn_logit_softcapping": (),  # null, or it is refused
        },
        ignored="final_logit_softcapping",  # of logits, which embedders have not
        angles=Angles({"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0}),
        read=_read_gemma,
        write=_write_gemma,
        **_SHARED,
    ),
)
