"""Small embedders of today's families with random weights, as their authors publish them, written without torch."""

import numpy as np
from safetensors.numpy import load_file as load_file
from safetensors.numpy import save_file

from retrieval.files import write_json
from support.tokenizer_kinds import write

_H, _F, _LAYERS = 16, 24, 2
_POOLING = {"word_embedding_dimension": _H, "include_prompt": True}


def qwen3(folder, prompts=None):
    """As Qwen3-Embedding: the last token, tensors without a prefix, two heads of queries for one of keys."""
    rng, heads, size = np.random.default_rng(0), 2, 12
    tokens, padding = _tokenizer(folder, "Qwen3-Embedding", "<|endoftext|>")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": tokens,
        "pad_token_id": padding,
        "hidden_size": _H,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": size,
        "intermediate_size": _F,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "attention_bias": False,
        "tie_word_embeddings": True,
    }
    shapes = {"embed_tokens": (tokens, _H), "norm": (_H,)}
    for layer in (f"layers.{n}" for n in range(_LAYERS)):
        shapes |= {f"{layer}.input_layernorm": (_H,), f"{layer}.post_attention_layernorm": (_H,)}
        shapes |= {f"{layer}.self_attn.{name}_norm": (size,) for name in "qk"}
        shapes |= {f"{layer}.self_attn.q_proj": (heads * size, _H), f"{layer}.self_attn.o_proj": (_H, heads * size)}
        shapes |= {f"{layer}.self_attn.{name}_proj": (size, _H) for name in "kv"}
        shapes |= {f"{layer}.mlp.{name}_proj": (_F, _H) for name in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (_H, _F)}
    return _written(folder, config, shapes, rng, {"pooling_mode_lasttoken": True}, prompts)


def modernbert(folder, prompts=None):
    """As modernbert-embed: the mean, a layer that sees all, then two that see their neighbours."""
    rng, layers = np.random.default_rng(1), _LAYERS + 1
    tokens, padding = _tokenizer(folder, "ModernBERT", "[PAD]")
    config = {
        "architectures": ["ModernBertModel"],
        "model_type": "modernbert",
        "vocab_size": tokens,
        "pad_token_id": padding,
        "hidden_size": _H,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": _F,
        "max_position_embeddings": 8192,
        "local_attention": 8,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "norm_eps": 1e-5,
        "position_embedding_type": "absolute",
    }
    shapes = {"embeddings.tok_embeddings": (tokens, _H), "embeddings.norm": (_H,), "final_norm": (_H,)}
    for n in range(layers):
        shapes |= {f"layers.{n}.{name}_norm": (_H,) for name in (("attn", "mlp") if n else ("mlp",))}
        shapes |= {f"layers.{n}.attn.Wqkv": (3 * _H, _H), f"layers.{n}.attn.Wo": (_H, _H)}
        shapes |= {f"layers.{n}.mlp.Wi": (2 * _F, _H), f"layers.{n}.mlp.Wo": (_H, _F)}
    return _written(folder, config, shapes, rng, {"pooling_mode_mean_tokens": True}, prompts)


def without_modules(folder):
    """The encoder alone, as base models are published."""
    for name in ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    return folder


def _tokenizer(folder, kind, padding):
    """Writes it, and returns its number of tokens and the id of one."""
    folder.mkdir(parents=True)
    tokenizer = write(folder, kind)
    return tokenizer.get_vocab_size(), tokenizer.token_to_id(padding)


def _written(folder, config, shapes, rng, pooling, prompts):
    draw = {
        f"{name}.weight": (rng.normal(0, 0.3, shape) + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(draw, folder / "model.safetensors")
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds)
    ]
    write_json(folder / "config.json", config)
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Pooling" / "config.json", _POOLING | pooling)
    settings = {"prompts": prompts or {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", settings)
    return folder
