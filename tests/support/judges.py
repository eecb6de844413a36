"""A tiny language model that judges pairs, as a folder with a byte-level tokenizer, and pairs for it."""

import json

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from retrieval.data.sets.beir import Candidate
from retrieval.models import encoder_folder, encoder_tensors
from retrieval.models.encoder_tensors import TensorNames
from retrieval.models.encoders.family import FAMILIES
from retrieval.models.rngs import Rngs
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig
from support.modules import spread

MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
MERGES = [("y", "e"), ("ye", "s"), ("n", "o")]
QUERIES = ["what do foxes eat?", "what do foxes eat?", "who sings?"]
DOCUMENTS = [Candidate("a", "Fox", "It eats grass."), Candidate("b", "", "Nobody."), Candidate("c", "", "sings " * 40)]
# What Qwen3-Reranker is told of a pair, as its authors write it.
TASK = "Given a web search query, retrieve relevant passages that answer the query"
TOLD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    f"<Instruct>: {TASK}\n<Query>: {{}}\n<Document>: {{}}",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)


def tokenizer():
    """Bytes, and the two answers."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    made = Tokenizer(models.BPE({piece: id for id, piece in enumerate(pieces)}, MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return made


def write(folder, tied=True, **config):
    """Writes a Qwen3 with its output layer, tied or not; returns the parameters and the layer [V, H]."""
    size = tokenizer().get_vocab_size()
    architecture = FAMILIES["qwen3"].architecture.replaced(kv_heads=1, head_size=6)
    sizes = dict(vocab_size=size, num_layers=2, hidden_size=16, num_heads=2, mlp_size=24, max_length=1024)
    model_config = TransformerConfig(**sizes, layer_norm_epsilon=1e-6, architecture=architecture, dropout=0.0)
    model = spread(Transformer(model_config, rngs=Rngs(0)), size=0.2)
    tensors = encoder_tensors.to_tensors(nnx.to_pure_dict(nnx.state(model, nnx.Param)), TensorNames.of(architecture))
    layer = tensors["embed_tokens.weight"]
    tensors = {f"model.{name}": x for name, x in tensors.items()}
    if not tied:
        layer = np.random.default_rng(3).normal(size=layer.shape).astype(np.float32)
        tensors["lm_head.weight"] = layer
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    kind = {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": tied, **config}
    (folder / "config.json").write_text(json.dumps(encoder_folder.written_config(model_config) | kind))
    tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": MARKS[0], "eos_token": MARKS[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model, layer


def rows(length):
    """The token ids of the pairs, of which the middle is cut."""
    made = tokenizer()
    before, behind = (made.encode(text).ids for text in (TOLD[0], TOLD[2]))
    for query, document in zip(QUERIES, DOCUMENTS):
        text = f"{document.title} {document.text}" if document.title else document.text
        body = made.encode(TOLD[1].format(query, text)).ids
        yield [*before, *body[: length - len(before) - len(behind)], *behind]


def hidden(model, ids):
    """The last token's state of a text alone."""
    from support.modules import one_text_per_row

    text = one_text_per_row(np.array([ids], np.int32))
    return np.asarray(jax.jit(lambda text: model(text, dropout_key=None))(text))[0, -1]
