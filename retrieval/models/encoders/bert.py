"""BERT (Devlin et al. 2019) and what is read as one: RoBERTa, XLM-R and DistilBERT."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.models.architecture import Architecture
from retrieval.models.encoders.family import FAMILIES, SIZES, Family, check_heads, epsilon, sizes
from retrieval.models.known_keys import ANY, shown
from retrieval.models.transformer_config import TransformerConfig

# BERT's names of the sizes of a `TransformerConfig`.
_SIZES = SIZES | dict(type_vocab_size="type_vocab_size")
_DISTILBERT_SIZES = _SIZES | dict(num_layers="n_layers", hidden_size="dim", num_heads="n_heads", mlp_size="hidden_dim")
_EPSILON = "layer_norm_eps"

# Modules of an encoder, of BERT's heads and of a cross-encoder.
_MODULES = {
    "token_embedding": "embeddings.word_embeddings",
    "position_embedding": "embeddings.position_embeddings",
    "type_embedding": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "layers/attention/query": "encoder.layer.{}.attention.self.query",
    "layers/attention/key": "encoder.layer.{}.attention.self.key",
    "layers/attention/value": "encoder.layer.{}.attention.self.value",
    "layers/attention/output": "encoder.layer.{}.attention.output.dense",
    "layers/attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "layers/mlp_in": "encoder.layer.{}.intermediate.dense",
    "layers/mlp_out": "encoder.layer.{}.output.dense",
    "layers/mlp_norm": "encoder.layer.{}.output.LayerNorm",
    "dense": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "": "cls.predictions",
    "pooler": "pooler.dense",
    "next_sentence": "cls.seq_relationship",
    "classifier": "classifier",
}
_HEADS = {
    "cls.predictions.": "mlm",
    "cls.seq_relationship.": "next_sentence",
    "pooler.": "pooler",
    "classifier.": "classifier",
    "linear.": "late",  # the projection of Stanford's ColBERT
}

# Names of tensors (regular expressions) and BERT's for the same, each looked for in turn.
_OLD_NAMES = {
    r"^(bert|roberta|distilbert)\.": "",
    # Google's, once "/" is ".", and those of the first ports
    r"\.layer_(\d+)\.": r".layer.\1.",
    r"\.(gamma|kernel)$": ".weight",
    r"\.beta$": ".bias",
    r"(^embeddings\.\w+_embeddings)$": r"\1.weight",
    r"^cls\.predictions\.output_bias$": "cls.predictions.bias",
    r"^cls\.seq_relationship\.output_(weight|bias)s?$": r"cls.seq_relationship.\1",
}
_ROBERTA_NAMES = {
    r"^lm_head\.dense\.": "cls.predictions.transform.dense.",
    r"^lm_head\.layer_norm\.": "cls.predictions.transform.LayerNorm.",
    r"^lm_head\.": "cls.predictions.",
    # What a cross-encoder's head does is what BERT's pooler and classifier do.
    r"^classifier\.dense\.": "pooler.dense.",
    r"^classifier\.out_proj\.": "classifier.",
}
_DISTILBERT_NAMES = {
    r"^transformer\.layer\.": "encoder.layer.",
    r"\.attention\.q_lin\.": ".attention.self.query.",
    r"\.attention\.k_lin\.": ".attention.self.key.",
    r"\.attention\.v_lin\.": ".attention.self.value.",
    r"\.attention\.out_lin\.": ".attention.output.dense.",
    r"\.sa_layer_norm\.": ".attention.output.LayerNorm.",
    r"\.ffn\.lin1\.": ".intermediate.dense.",
    r"\.ffn\.lin2\.": ".output.dense.",
    r"\.output_layer_norm\.": ".output.LayerNorm.",
    r"^pre_classifier\.": "pooler.dense.",
    r"^vocab_transform\.": "cls.predictions.transform.dense.",
    r"^vocab_layer_norm\.": "cls.predictions.transform.LayerNorm.",
    r"^vocab_projector\.bias$": "cls.predictions.bias",
    r"^vocab_projector\.weight$": "cls.predictions.decoder.weight",
}

# Keys that change what a model computes -> the values with which it computes what ours does.
_NEEDED = {
    "hidden_act": ("gelu",),
    "activation": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
    "use_bfloat16": (False,),
}
_ROBERTA_PAD_ID = 1
_SKIPPED = 2  # positions: RoBERTa's count from the id of padding + 1, in fairseq's manner


def _read(
    path: Path, config: Mapping[str, Any], keys: Mapping[str, str], skipped: int = 0, **defaults: int
) -> dict[str, Any]:
    pad_id = config.get("pad_token_id", _ROBERTA_PAD_ID)
    if skipped and pad_id != _ROBERTA_PAD_ID:
        raise UserError(f"{path}: pad_token_id is {shown(pad_id)}; only {_ROBERTA_PAD_ID} fits")
    found = sizes(path, config, keys, **defaults)
    check_heads(path, found, keys["num_heads"])
    found["max_length"] -= skipped
    if found["max_length"] < 1:
        raise UserError(f"{path}: {keys['max_length']} leaves no position for a text; copy the file again")
    return {
        **found,
        "layer_norm_epsilon": epsilon(path, config, _EPSILON, 1e-12),
        "architecture": Architecture(),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    found = {theirs: getattr(config, ours) for ours, theirs in _SIZES.items()} | {_EPSILON: config.layer_norm_epsilon}
    dropout = {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.attention_rate}
    rest = {"hidden_act": "gelu", "initializer_range": 0.02, "pad_token_id": 0, "dtype": "float32"}
    return {"architectures": ["BertModel"], "model_type": "bert"} | found | dropout | rest


def _family(
    keys: Mapping[str, str], names: Mapping[str, str] = {}, skipped: int = 0, write: Any = None, **defaults: int
) -> Family:
    return Family(
        Architecture(),
        keys,
        {_EPSILON: ANY} | _NEEDED,
        functools.partial(_read, keys=keys, skipped=skipped, **defaults),
        _MODULES,
        write,
        heads=_HEADS,
        names={**_OLD_NAMES, **names},
        unused=r"^embeddings\.(position_ids|token_type_ids)$",  # buffers
        skipped_positions=skipped,
        prefix="bert.",
    )


FAMILIES.register("bert", _family(_SIZES, write=_write))
FAMILIES.register("roberta", _family(_SIZES, _ROBERTA_NAMES, _SKIPPED))
FAMILIES.register("xlm-roberta", _family(_SIZES, _ROBERTA_NAMES, _SKIPPED))
FAMILIES.register("distilbert", _family(_DISTILBERT_SIZES, _DISTILBERT_NAMES, type_vocab_size=1))
