"""Tiny folders of every family of encoders, as the hub has them: the names and shapes of its tensors, its config.

They are written down by hand from the published models, and no code of ours or of transformers makes them. Every
parameter is drawn, scales and biases of norms too: a fresh scale is 0 or 1, and would hide the wrong one of both.
`interop_encoders_test` gives them to transformers.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from retrieval.common.files import write_json

# Tokens, hidden size, size of the MLP, layers: a full period of local and global layers, and a rest.
V, H, F, LAYERS = 97, 48, 40, 7

Tensors = dict[str, np.ndarray]
Config = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Family:
    """A family's folder.

    Attributes:
      config: its config.json, in the spelling of transformers 4.
      shapes: of tensors; {} is a layer.
      absent: tensors of some layers that are not there.
      window: at this length, and at one more, something changes.
      longest: a text's length.
      small: the norms' scales are stored less 1.
      of_torch: the class of transformers.
      quiet: matrices that are made smaller, by the ends of their names: else the attention would be on one token.
    """

    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    of_torch: str
    absent: tuple[str, ...] = ()
    window: int = 9
    longest: int = 40
    small: bool = False
    quiet: tuple[str, ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of texts at which something may go wrong."""
        return 1, 2, self.window, self.window + 1, self.longest

    def tensors(self, config: Mapping[str, Any] | None = None) -> Tensors:
        """All of them, each drawn by its name."""
        layers = next(value for key, value in (config or self.config).items() if key in _LAYER_FIELDS)
        names = {
            name.format(layer): shape
            for name, shape in self.shapes.items()
            for layer in range(layers if "{}" in name else 1)
        }
        return {name: self._draw(name, shape) for name, shape in names.items() if name not in self.absent}

    def _draw(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        values *= (0.05 if name.endswith(self.quiet) else 0.2) if len(shape) == 2 else 0.3
        is_scale = len(shape) == 1 and name.endswith("weight")
        return (values + (is_scale and not self.small)).astype(np.float32)


_LAYER_FIELDS = ("num_hidden_layers", "num_layers", "n_layer")
_SIZES = dict(vocab_size=V, hidden_size=H, intermediate_size=F, num_hidden_layers=LAYERS)
_SIZES |= dict(max_position_embeddings=160, initializer_range=0.02, attention_dropout=0.0)


def _decoder(heads: int, kv_heads: int, head_size: int, *more: str) -> dict[str, tuple[int, ...]]:
    """The tensors of Llama; more: of 'norms' (of queries and keys), 'biases' (of the three products), 'around'."""
    width, kv_width = heads * head_size, kv_heads * head_size
    attention = {"q_proj": (width, H), "k_proj": (kv_width, H), "v_proj": (kv_width, H), "o_proj": (H, width)}
    mlp = {"gate_proj": (F, H), "up_proj": (F, H), "down_proj": (H, F)}
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] * ("around" in more)
    shapes = {"embed_tokens.weight": (V, H), "norm.weight": (H,)}
    shapes |= {f"layers.{{}}.self_attn.{name}.weight": shape for name, shape in attention.items()}
    shapes |= {f"layers.{{}}.mlp.{name}.weight": shape for name, shape in mlp.items()}
    shapes |= {f"layers.{{}}.{name}.weight": (H,) for name in norms}
    if "norms" in more:
        shapes |= {f"layers.{{}}.self_attn.{name}_norm.weight": (head_size,) for name in "qk"}
    if "biases" in more:
        shapes |= {f"layers.{{}}.self_attn.{name}.bias": attention[name][:1] for name in ("q_proj", "k_proj", "v_proj")}
    return shapes


def _heads(heads: int, kv_heads: int, head_size: int) -> Config:
    return dict(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_size)


def _with_biases(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """A bias and the weight of each module, given the weight's shape."""
    weights = {f"{name}.weight": shape for name, shape in shapes.items()}
    return weights | {f"{name}.bias": shape[:1] for name, shape in shapes.items()}


_QWEN3 = dict(
    model_type="qwen3", architectures=["Qwen3Model"], **_SIZES, **_heads(4, 2, 8), hidden_act="silu", rms_norm_eps=1e-6,
    rope_theta=1e6, rope_scaling=None, attention_bias=False, use_sliding_window=False, sliding_window=None,
    max_window_layers=LAYERS, tie_word_embeddings=True, use_cache=True, bos_token_id=3, eos_token_id=3,
    torch_dtype="float32", transformers_version="4.51.3",
)  # fmt: skip
_LLAMA = dict(
    model_type="llama", architectures=["LlamaForCausalLM"], **_SIZES, **_heads(4, 2, 8), hidden_act="silu",
    rms_norm_eps=1e-5, rope_theta=1e4, rope_scaling=None, attention_bias=False, mlp_bias=False, pretraining_tp=1,
    tie_word_embeddings=False, use_cache=True, bos_token_id=1, eos_token_id=2, torch_dtype="float32",
)  # fmt: skip
_LLAMA_ALONE = ("rope_scaling", "pretraining_tp")
_GEMMA3 = dict(
    model_type="gemma3_text", architectures=["Gemma3TextModel"], **_SIZES, **_heads(3, 1, 8),
    hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, query_pre_attn_scalar=12, rope_theta=1e6,
    rope_local_base_freq=1e4, rope_scaling=None, sliding_window=6, sliding_window_pattern=3,
    attention_bias=False, attn_logit_softcapping=None, final_logit_softcapping=None, use_cache=True, pad_token_id=0,
    bos_token_id=2, eos_token_id=1, torch_dtype="float32",
)  # fmt: skip
_T5 = dict(
    model_type="t5", architectures=["T5EncoderModel"], vocab_size=V, d_model=H, d_kv=8, d_ff=F, num_layers=LAYERS,
    num_decoder_layers=LAYERS, num_heads=3, relative_attention_num_buckets=32, dropout_rate=0.1, n_positions=512,
    layer_norm_epsilon=1e-6, initializer_factor=1.0, feed_forward_proj="relu", is_encoder_decoder=True, use_cache=True,
    pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, output_past=True, torch_dtype="float32",
)  # fmt: skip
_BERT_SIZES = dict(
    {name: value for name, value in _SIZES.items() if name != "attention_dropout"}, num_attention_heads=4,
    hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, layer_norm_eps=1e-12,
)  # fmt: skip


def _t5(mlp: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    block = "encoder.block.{}.layer."
    shapes = {"shared.weight": (V, H), "encoder.final_layer_norm.weight": (H,)}
    shapes |= {f"{block}0.SelfAttention.{name}.weight": (24, H) for name in "qkv"}
    shapes |= {f"{block}0.SelfAttention.o.weight": (H, 24)}
    shapes |= {f"{block}1.DenseReluDense.{name}.weight": (F, H) for name in mlp}
    shapes |= {f"{block}1.DenseReluDense.wo.weight": (H, F)}
    shapes |= {f"{block}{place}.layer_norm.weight": (H,) for place in (0, 1)}
    return shapes | {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (32, 3)}


_T5_QUIET = ("SelfAttention.q.weight",)

FAMILIES = {
    "modernbert": Family(
        dict(
            model_type="modernbert", architectures=["ModernBertModel"], **_SIZES, num_attention_heads=3,
            hidden_activation="gelu", norm_eps=1e-5, norm_bias=False, attention_bias=False, mlp_bias=False,
            classifier_bias=False, decoder_bias=True, global_attn_every_n_layers=3, local_attention=8,
            global_rope_theta=160000.0, local_rope_theta=10000.0, position_embedding_type="absolute",
            embedding_dropout=0.0, mlp_dropout=0.0, classifier_dropout=0.0, classifier_pooling="mean",
            classifier_activation="gelu", initializer_cutoff_factor=2.0, layer_norm_eps=1e-5,
            deterministic_flash_attn=False, sparse_pred_ignore_index=-100, sparse_prediction=False,
            repad_logits_with_grad=False, gradient_checkpointing=False, pad_token_id=3, cls_token_id=1, bos_token_id=1,
            sep_token_id=2, eos_token_id=2, torch_dtype="float32", transformers_version="4.47.0.dev0",
        ),
        {
            "embeddings.tok_embeddings.weight": (V, H), "embeddings.norm.weight": (H,), "final_norm.weight": (H,),
            "layers.{}.attn.Wqkv.weight": (3 * H, H), "layers.{}.attn.Wo.weight": (H, H),
            "layers.{}.attn_norm.weight": (H,), "layers.{}.mlp_norm.weight": (H,),
            "layers.{}.mlp.Wi.weight": (2 * F, H), "layers.{}.mlp.Wo.weight": (H, F),
        },
        "ModernBertModel", absent=("layers.0.attn_norm.weight",), window=4,
    ),
    "qwen3": Family(
        _QWEN3, _decoder(4, 2, 8, "norms"), "Qwen3Model",
    ),
    "qwen3_both_ways": Family(_QWEN3 | {"is_causal": False}, _decoder(4, 2, 8, "norms"), "Qwen3Model"),
    "qwen2": Family(
        {name: value for name, value in _QWEN3.items() if name not in ("head_dim", "attention_bias")}
        | dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], num_attention_heads=6),
        _decoder(6, 2, 8, "biases"), "Qwen2Model",
    ),
    "llama": Family(_LLAMA, _decoder(4, 2, 8), "LlamaModel"),
    "llama3": Family(
        _LLAMA | dict(rope_theta=5e5, rope_scaling=dict(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64,
        )),
        _decoder(4, 2, 8), "LlamaModel",
    ),
    "mistral": Family(
        {name: value for name, value in _LLAMA.items() if "bias" not in name and name not in _LLAMA_ALONE}
        | dict(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=6),
        _decoder(4, 2, 8), "MistralModel", window=6,
    ),
    "eurobert": Family(
        _LLAMA | dict(model_type="eurobert", architectures=["EuroBertModel"], rope_theta=None, mask_token_id=4,
                      rope_parameters=dict(rope_type="default", rope_theta=250000.0), pad_token_id=3),
        _decoder(4, 2, 8), "EuroBertModel",
    ),
    "gemma3": Family(
        _GEMMA3, _decoder(3, 1, 8, "norms", "around"), "Gemma3TextModel", window=6, small=True,
    ),
    "embedding_gemma": Family(
        _GEMMA3 | dict(use_bidirectional_attention=True, sliding_window=8), _decoder(3, 1, 8, "norms", "around"),
        "Gemma3TextModel", window=4, small=True,
    ),
    "t5": Family(
        _T5, _t5(("wi",)), "T5EncoderModel", longest=150, quiet=_T5_QUIET,
    ),
    "t5_gated": Family(
        _T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False), _t5(("wi_0", "wi_1")), "T5EncoderModel",
        longest=150, quiet=_T5_QUIET,
    ),
    "mpnet": Family(
        dict(_BERT_SIZES, model_type="mpnet", architectures=["MPNetForMaskedLM"], hidden_act="gelu",
             relative_attention_num_buckets=32, layer_norm_eps=1e-5, bos_token_id=0, pad_token_id=1, eos_token_id=2),
        _with_biases(
            {"embeddings.LayerNorm": (H,), "encoder.layer.{}.attention.LayerNorm": (H,),
             "encoder.layer.{}.intermediate.dense": (F, H), "encoder.layer.{}.output.dense": (H, F),
             "encoder.layer.{}.output.LayerNorm": (H,)}
            | {f"encoder.layer.{{}}.attention.attn.{name}": (H, H) for name in "qkvo"}
        )
        | {"embeddings.word_embeddings.weight": (V, H), "embeddings.position_embeddings.weight": (160, H),
           "encoder.relative_attention_bias.weight": (32, 4)},
        "MPNetModel", longest=150,
    ),
    "nomic_bert": Family(
        dict(_BERT_SIZES, model_type="nomic_bert", architectures=["NomicBertModel"], hidden_act="silu",
             type_vocab_size=2, rope_parameters=dict(rope_type="default", rope_theta=1000.0), pad_token_id=0),
        {"embeddings.word_embeddings.weight": (V, H), "embeddings.token_type_embeddings.weight": (2, H)}
        | _with_biases({name: (H,) for name in ("emb_ln", "encoder.layers.{}.norm1", "encoder.layers.{}.norm2")})
        | {"encoder.layers.{}.attn.Wqkv.weight": (3 * H, H), "encoder.layers.{}.attn.out_proj.weight": (H, H),
           "encoder.layers.{}.mlp.fc11.weight": (F, H), "encoder.layers.{}.mlp.fc12.weight": (F, H),
           "encoder.layers.{}.mlp.fc2.weight": (H, F)},
        "NomicBertModel",
    ),
    "gte": Family(
        dict(_BERT_SIZES, model_type="gte", architectures=["GteModel"], hidden_act="gelu", type_vocab_size=1,
             rope_parameters=dict(rope_type="default", rope_theta=160000.0), pad_token_id=1),
        {"embeddings.word_embeddings.weight": (V, H), "embeddings.token_type_embeddings.weight": (1, H),
         "encoder.layer.{}.mlp.up_gate_proj.weight": (2 * F, H)}
        | _with_biases(
            {"embeddings.LayerNorm": (H,), "encoder.layer.{}.attn_ln": (H,), "encoder.layer.{}.mlp_ln": (H,),
             "encoder.layer.{}.attention.qkv_proj": (3 * H, H), "encoder.layer.{}.attention.o_proj": (H, H),
             "encoder.layer.{}.mlp.down_proj": (H, F)}
        ),
        "GteModel",
    ),
}  # fmt: skip

Change = Callable[[Config, Tensors], None]


def write(folder: Path, name: str, change: Change | None = None, dtype: str = "float32", **fields: Any) -> Path:
    """Writes a family's folder.

    Args:
      change: makes another config and other tensors of the family's, in place.
      dtype: of the stored tensors.
      fields: of the config; None takes one away.
    """
    family = FAMILIES[name]
    config = {key: value for key, value in (dict(family.config) | fields).items() if fields.get(key, 0) is not None}
    tensors = family.tensors(config)
    if change:
        change(config, tensors)
    folder.mkdir(exist_ok=True, parents=True)
    write_json(folder / "config.json", config)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    save_file({key: x.astype(kind) for key, x in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def texts(name: str) -> list[np.ndarray]:
    """Token ids of texts of the family's lengths; none of them has a meaning of its own."""
    rng = np.random.default_rng(7)
    return [rng.integers(4, V, length) for length in FAMILIES[name].lengths]
