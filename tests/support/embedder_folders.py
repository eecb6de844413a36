"""Small embedders of today's families as sentence-transformers has them, and a cross-encoder, with random weights."""

import numpy as np
from flax import nnx
from safetensors.numpy import load_file as load_file
from safetensors.numpy import save_file

from retrieval.common.files import write_json
from retrieval.methods.reranker.model import CrossEncoder, write_cross_encoder
from retrieval.models import encoder_tensors
from retrieval.models.encoder_folder import written_config
from retrieval.models.encoder_tensors import TensorNames
from retrieval.models.encoders.family import FAMILIES
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig
from support.modules import spread
from support.tokenizer_kinds import write

_SIZES = dict(hidden_size=16, num_heads=2, mlp_size=24, dropout=0.0)


def qwen3(folder):
    """As Qwen3-Embedding: the last token, two heads of queries for one of keys."""
    kind = {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True}
    sizes = dict(num_layers=2, max_length=32768, layer_norm_epsilon=1e-6)
    tokenizer = ("Qwen3-Embedding", "<|endoftext|>")
    _write_encoder(folder, "qwen3", tokenizer, kind, sizes, kv_heads=1, head_size=12, rope_theta=1e6)
    return _with_modules(folder, "pooling_mode_lasttoken")


def modernbert(folder, prompts=None):
    """As modernbert-embed: the mean, a layer that sees all, then two that see their neighbours."""
    kind, sizes = {"architectures": ["ModernBertModel"]}, dict(num_layers=3, max_length=8192, layer_norm_epsilon=1e-5)
    _write_encoder(folder, "modernbert", ("ModernBERT", "[PAD]"), kind, sizes, window=4)
    return _with_modules(folder, "pooling_mode_mean_tokens", prompts)


def without_modules(folder):
    """The encoder alone, as base models are published."""
    for name in ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    return folder


def cross_encoder(folder, vocabulary, length=64):
    """A reranker of a WordPiece vocabulary; the folder and the model."""
    folder.mkdir(exist_ok=True)
    config = TransformerConfig(vocab_size=len(vocabulary), num_layers=1, max_length=length, **_SIZES)
    model = spread(CrossEncoder(config, 1, rngs=nnx.Rngs(0)))
    write_cross_encoder(folder, model)
    vocabulary.export(folder, length=length, types=2)
    return folder, model


def _write_encoder(folder, family, tokenizer, kind, sizes, **switches):
    folder.mkdir(parents=True)
    name, padding = tokenizer
    tokens, architecture = write(folder, name), FAMILIES[family].architecture.replaced(**switches)
    sizes = {**_SIZES, **sizes, "vocab_size": tokens.get_vocab_size()}
    config = TransformerConfig(**sizes, architecture=architecture)
    model = spread(Transformer(config, rngs=nnx.Rngs(0)), size=0.3)
    tensors = encoder_tensors.to_tensors(nnx.to_pure_dict(nnx.state(model, nnx.Param)), TensorNames.of(architecture))
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, folder / "model.safetensors")
    write_json(folder / "config.json", written_config(config) | kind | {"pad_token_id": tokens.token_to_id(padding)})


def _with_modules(folder, pooling, prompts=None):
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    pooling = {"word_embedding_dimension": _SIZES["hidden_size"], "include_prompt": True, pooling: True}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    settings = {"prompts": prompts or {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", settings)
    return folder
