"""sentence-transformers in the sizes of our towers: BERT, the mean of the tokens, a linear layer; random parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from transformers import BertConfig, BertModel, BertTokenizerFast


def build(
    sizes: Mapping[str, Any],
    vocabulary: Path,
    length: int,
    folder: Path,
    device: str = "cpu",
    seed: int = 0,
    **backend: Any,
) -> SentenceTransformer:
    """A model of our `config.model`, whose tokeniser has our vocabulary.

    Args:
      folder: gets the files of the model, which sentence-transformers wants to read it from.
      backend: further arguments of the Transformer module, such as its backend.
    """
    torch.manual_seed(seed)
    # By its place: the argument has another name from transformers 5 on.
    tokenizer = BertTokenizerFast(str(vocabulary), do_lower_case=True, model_max_length=length)
    config = BertConfig(
        vocab_size=len(tokenizer),
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
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformer = modules.Transformer(str(folder), max_seq_length=length, **backend)
    pooling = modules.Pooling(sizes["hidden_size"], pooling_mode="mean")
    dense = modules.Dense(sizes["hidden_size"], sizes["embed_dim"], activation_function=torch.nn.Identity())
    return SentenceTransformer(modules=[transformer, pooling, dense], device=device)
