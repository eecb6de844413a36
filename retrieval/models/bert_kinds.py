"""The kinds of models that are read as a BERT: what their configs say, and what their tensors are called."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval import files
from retrieval.errors import UserError
from retrieval.models import known_keys
from retrieval.models.known_keys import ANY, shown

CONFIGS = ("config.json", "bert_config.json")

# BERT's names of the sizes of a `TransformerConfig`.
SIZES = dict(
    vocab_size="vocab_size",
    num_layers="num_hidden_layers",
    hidden_size="hidden_size",
    num_heads="num_attention_heads",
    mlp_size="intermediate_size",
    max_length="max_position_embeddings",
    type_vocab_size="type_vocab_size",
    layer_norm_epsilon="layer_norm_eps",
)
_DISTILBERT_SIZES = SIZES | dict(num_layers="n_layers", hidden_size="dim", num_heads="n_heads", mlp_size="hidden_dim")

# Names of tensors (regular expressions) and BERT's for the same, each looked for in turn.
_OLD_NAMES = {  # Google's, once "/" is ".", and those of the first ports
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
    r"^vocab_transform\.": "cls.predictions.transform.dense.",
    r"^vocab_layer_norm\.": "cls.predictions.transform.LayerNorm.",
    r"^vocab_projector\.bias$": "cls.predictions.bias",
    r"^vocab_projector\.weight$": "cls.predictions.decoder.weight",
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is peculiar to a kind of model.

    Attributes:
      sizes: our names of sizes -> the fields of its config.
      defaults: values of fields that its config may leave out.
      names: its names of tensors -> BERT's.
      skipped_positions: rows of its table of positions before that of a text's first token.
    """

    sizes: Mapping[str, str]
    defaults: Mapping[str, Any]
    names: Mapping[str, str]
    skipped_positions: int = 0

    def bert_name(self, name: str) -> str:
        """The name that Hugging Face's `BertModel` has for a tensor."""
        name = re.sub(r"^(bert|roberta|distilbert)\.", "", name.replace("/", "."))
        for theirs, berts in {**_OLD_NAMES, **self.names}.items():
            name = re.sub(theirs, berts, name)
        return name


KINDS = {
    "bert": Kind(SIZES, {"layer_norm_eps": 1e-12}, {}),
    # Positions count from the id of padding + 1, in fairseq's manner.
    "roberta": Kind(SIZES, {"layer_norm_eps": 1e-12}, _ROBERTA_NAMES, skipped_positions=2),
    "xlm-roberta": Kind(SIZES, {"layer_norm_eps": 1e-12}, _ROBERTA_NAMES, skipped_positions=2),
    "distilbert": Kind(_DISTILBERT_SIZES, {"layer_norm_eps": 1e-12, "type_vocab_size": 1}, _DISTILBERT_NAMES),
}
# Fields of configs that change what a model computes -> the values with which it computes what ours does.
_NEEDED = {
    "model_type": tuple(KINDS),
    "hidden_act": ("gelu",),
    "activation": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
    "use_bfloat16": (False,),
}
# Those that change nothing: notes, sizes of heads that are not read, dropout and other settings of training, what a
# library returns, and how one generates text, which older versions wrote into every config.
_HARMLESS = """
    _name_or_path name_or_path architectures transformers_version dtype torch_dtype language name
    initializer_range initializer_factor hidden_dropout_prob attention_probs_dropout_prob classifier_dropout dropout
    attention_dropout qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_ tie_word_embeddings
    gradient_checkpointing use_cache output_past output_hidden_states output_attentions return_dict torchscript
    attn_implementation _attn_implementation _attn_implementation_autoset chunk_size_feed_forward xla_device
    id2label label2id num_labels _num_labels finetuning_task problem_type task_specific_params tokenizer_class prefix
    bos_token_id pad_token_id eos_token_id sep_token_id cls_token_id unk_token_id mask_token_id decoder_start_token_id
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    sbert_ce_default_activation_function sentence_transformers transformers.js_config model_max_length max_seq_length
    tie_encoder_decoder cross_attention_hidden_size tf_legacy_loss max_length min_length do_sample early_stopping
    num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
    return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
""".split()
_MOST = 2**31 - 1  # of a size: no array of ours is larger along an axis
_ROBERTA_PAD_ID = 1


def config_of(folder: Path) -> Path:
    """The config of a folder of weights.

    Raises:
      UserError: there is none.
    """
    for name in CONFIGS:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder}: no {' and no '.join(CONFIGS)}, one of which a folder of BERT's weights has")


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """The kind of a model and its sizes, as fields of a `TransformerConfig`, by a config that is understood in full.

    Raises:
      UserError: a part of it is not understood, or missing, or no size.
    """
    record = files.read_json(path)
    kind = record.get("model_type", "bert") if isinstance(record, dict) else "bert"
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(f"{path}: model_type is {shown(kind)}; one of {', '.join(KINDS)} is needed")
    sizes = dict.fromkeys(KINDS[kind].sizes.values(), ANY)
    config = known_keys.read(path, dict.fromkeys(_HARMLESS, ANY) | sizes | _NEEDED)
    pad_id = config.get("pad_token_id", _ROBERTA_PAD_ID)
    if KINDS[kind].skipped_positions and pad_id != _ROBERTA_PAD_ID:
        raise UserError(f"{path}: pad_token_id is {shown(pad_id)}; only {_ROBERTA_PAD_ID} fits")
    return kind, _sizes(path, config, KINDS[kind])


def _sizes(path: Path, config: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for ours, field in kind.sizes.items():
        if ours == "layer_norm_epsilon":
            sizes[ours] = config.get(field, kind.defaults.get(field))
            if type(sizes[ours]) is not float or not 0 < sizes[ours] < 1:  # which NaN is not, either
                raise UserError(f"{path}: {field} is {shown(sizes[ours])}; a number between 0 and 1 is needed")
        else:
            sizes[ours] = known_keys.whole(path, config, field, _MOST, kind.defaults.get(field))
    if sizes["hidden_size"] % sizes["num_heads"]:
        heads = kind.sizes["num_heads"]
        raise UserError(f"{path}: {heads} is {sizes['num_heads']}, which does not divide {sizes['hidden_size']}")
    sizes["max_length"] -= kind.skipped_positions
    if sizes["max_length"] < 1:
        raise UserError(f"{path}: {kind.sizes['max_length']} leaves no position for a text; copy the file again")
    return sizes
