"""sentence-transformers in the sizes of our towers: an encoder, the mean of the tokens, a linear layer.

The encoder is a BERT, or of any family that transformers knows; parameters are random.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, BertConfig, BertForMaskedLM, BertModel, BertTokenizerFast


def build(
    sizes: Mapping[str, Any],
    vocabulary: Path,
    length: int,
    folder: Path,
    device: str = "cpu",
    seed: int = 0,
    encoder: Mapping[str, Any] | None = None,
    **backend: Any,
) -> SentenceTransformer:
    """A model of our `config.model`, whose tokeniser has our vocabulary.

    Args:
      folder: gets the files of the model, which sentence-transformers wants to read it from.
      encoder: its config.json; None for a BERT of these sizes.
      backend: further arguments of the Transformer module, such as its backend.
    """
    from sentence_transformers.sentence_transformer import modules

    save(sizes, vocabulary, length, folder, seed, encoder)
    transformer = modules.Transformer(str(folder), max_seq_length=length, **backend)
    pooling = modules.Pooling(sizes["hidden_size"], pooling_mode="mean")
    dense = modules.Dense(sizes["hidden_size"], sizes["embed_dim"], activation_function=torch.nn.Identity())
    return SentenceTransformer(modules=[transformer, pooling, dense], device=device)


def save(
    sizes: Mapping[str, Any],
    vocabulary: Path,
    length: int,
    folder: Path,
    seed: int = 0,
    encoder: Mapping[str, Any] | None = None,
    masked: bool = False,
) -> None:
    """Writes an encoder and its tokeniser, arguments as of `build`; `masked`: a masked language model."""
    torch.manual_seed(seed)
    # By its place: the argument has another name from transformers 5 on.
    tokenizer = BertTokenizerFast(str(vocabulary), do_lower_case=True, model_max_length=length)
    if encoder is not None:
        model = AutoModel.from_config(AutoConfig.for_model(**encoder))
    elif masked:
        model = BertForMaskedLM(_bert(sizes, len(tokenizer), length))
    else:
        model = BertModel(_bert(sizes, len(tokenizer), length), add_pooling_layer=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _bert(sizes: Mapping[str, Any], vocab_size: int, length: int) -> BertConfig:
    return BertConfig(
        vocab_size=vocab_size,
        num_hidden_layers=sizes["num_layers"],
        hidden_size=sizes["hidden_size"],
        num_attention_heads=sizes["num_heads"],
        intermediate_size=sizes["mlp_size"],
        max_position_embeddings=length,
        hidden_dropout_prob=sizes["dropout"],
        attention_probs_dropout_prob=sizes["dropout"]
        if sizes["attention_dropout"] == -1
        else sizes["attention_dropout"],
    )
