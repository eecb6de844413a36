"""A family of published encoders: what its configs say, and what its tensors are called, in both directions.

A file beside this one, or of a plugin, adds a family to `FAMILIES` by the `model_type` of its configs.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retrieval import files
from retrieval.errors import UserError
from retrieval.models import known_keys
from retrieval.models.architecture import Architecture
from retrieval.models.known_keys import ANY, shown
from retrieval.models.transformer_config import TransformerConfig
from retrieval.registry import Table
from retrieval.runtime import model_folder

CONFIGS = ("config.json", "bert_config.json")
MOST = 2**31 - 1  # of a size: no array of ours is larger along an axis

# Our names of the sizes of a `TransformerConfig` -> what most configs call them.
SIZES = dict(
    vocab_size="vocab_size",
    num_layers="num_hidden_layers",
    hidden_size="hidden_size",
    num_heads="num_attention_heads",
    mlp_size="intermediate_size",
    max_length="max_position_embeddings",
)

# Keys of configs that change no hidden state: notes, dropout and other settings of training, what a library returns,
# and how one generates text, which older versions wrote into every config.
_HARMLESS = """
    _name_or_path name_or_path architectures transformers_version dtype torch_dtype language name
    initializer_range initializer_factor initializer_cutoff_factor
    hidden_dropout_prob attention_probs_dropout_prob classifier_dropout dropout
    attention_dropout qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_ tie_word_embeddings
    embedding_dropout mlp_dropout dropout_rate
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
    unsloth_version unsloth_fixed cache_implementation reference_compile repad_logits_with_grad
    sparse_pred_ignore_index sparse_prediction classifier_bias classifier_pooling decoder_bias
    deterministic_flash_attn pretraining_tp num_decoder_layers is_training
    is_matryoshka matryoshka_dimensions
""".split()


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of published encoder.

    Attributes:
      architecture: its switches; where its configs set some, those of its usual one.
      sizes: our names of sizes -> keys of its configs.
      keys: the other keys -> the values that are understood, or `ANY`.
      read: gives the fields of a `TransformerConfig` by a config whose keys are known, with its path for errors.
      modules: our modules -> its own; {} is the number of a layer.
      write: gives a `config.json` by the config of an encoder; None: it is written as the family that its
        architecture names.
        Where one holds several of ours, in equal parts of its rows, they are 'NAME#0', 'NAME#1', ...
      gated_modules: those that have other names where the MLP is gated.
      heads: prefixes of tensors behind the encoder -> what they are of: 'mlm', 'next_sentence', 'pooler', 'classifier',
        'late' or 'lm'.
      names: other names of tensors (regular expressions) -> those of `modules`, each looked for in turn.
      unused: tensors (a regular expression) that have no place in any model of ours.
      skipped_positions: rows of its table of positions before that of a text's first token.
      prefix: what stands before the names of an encoder's tensors where its model has a classifier.
    """

    architecture: Architecture
    sizes: Mapping[str, str]
    keys: Mapping[str, Any]
    read: Callable[[Path, Mapping[str, Any]], dict[str, Any]]
    modules: Mapping[str, str]
    write: Callable[[TransformerConfig], dict[str, Any]] | None = None
    gated_modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    heads: Mapping[str, str] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unused: str = r"(?!)"
    skipped_positions: int = 0
    prefix: str = ""

    def modules_of(self, architecture: Architecture) -> dict[str, str]:
        """Our modules -> its own, of an encoder with such switches."""
        modules = {**self.modules, **(self.gated_modules if architecture.gated else {})}
        return {ours: its for ours, its in modules.items() if ours != "type_embedding" or architecture.token_types}

    def name(self, tensor: str) -> str:
        """The name that `modules` has for a tensor of a folder."""
        tensor = tensor.replace("/", ".")
        for theirs, ours in self.names.items():
            tensor = re.sub(theirs, ours, tensor)
        return tensor


FAMILIES: Table[Family] = Table("encoder family", "retrieval.models.encoders")


def config_of(folder: Path) -> Path:
    """The config of a folder of weights, or of what an adapter stands on.

    Raises:
      UserError: there is none.
    """
    place = model_folder.base_of(folder) or folder
    for name in CONFIGS:
        if (place / name).is_file():
            return place / name
    raise UserError(f"{folder}: no {' and no '.join(CONFIGS)}, one of which a folder of an encoder's weights has")


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """The family of a model and its sizes, as fields of a `TransformerConfig`, by a config that is understood in full.

    Raises:
      UserError: a part of it is not understood, or missing, or no size.
    """
    record = files.read_json(path)
    name = record.get("model_type", _usual_family(path, record)) if isinstance(record, dict) else "bert"
    if not isinstance(name, str) or name not in FAMILIES:
        raise UserError(f"{path}: model_type is {shown(name)}; one of {', '.join(FAMILIES)} is needed")
    family = FAMILIES[name]
    config = known_keys.read(path, dict.fromkeys(_HARMLESS, ANY) | {"model_type": (name,)} | _known(family))
    return name, family.read(path, config)


def _usual_family(path: Path, record: Mapping[str, Any]) -> str | None:
    """The family of a config without a `model_type`, as old ones of BERT are: that of its class, or a plain BERT."""
    if path.name != CONFIGS[0]:
        return "bert"
    if classes := record.get("architectures"):
        name = str(classes[0] if isinstance(classes, list) else classes).lower()
        known = [family for family in FAMILIES if name.startswith(re.sub("[-_]", "", family))]
        return max(known, key=len, default=None if name.endswith("model") else "bert")
    # RoBERTa's configs have these values, and count positions otherwise.
    return None if record.get("pad_token_id", 0) or record.get("type_vocab_size") == 1 else "bert"


def _known(family: Family) -> dict[str, Any]:
    return dict.fromkeys(family.sizes.values(), ANY) | dict(family.keys)


def sizes(path: Path, config: Mapping[str, Any], keys: Mapping[str, str], **defaults: int) -> dict[str, int]:
    """Whole numbers of a config, by our names of them.

    Args:
      keys: our names -> those of the config.
      defaults: of keys that a config may leave out.

    Raises:
      UserError: one is missing, or no whole number of at least 1.
    """
    return {ours: known_keys.whole(path, config, key, MOST, defaults.get(key)) for ours, key in keys.items()}


def epsilon(path: Path, config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """The epsilon of norms.

    Raises:
      UserError: it is no number between 0 and 1.
    """
    value = config.get(key, default)
    if type(value) is not float or not 0 < value < 1:  # which NaN is not, either
        raise UserError(f"{path}: {key} is {shown(value)}; a number between 0 and 1 is needed")
    return value


def positive(path: Path, config: Mapping[str, Any], key: str, default: float) -> float:
    """A number above 0.

    Raises:
      UserError: it is none.
    """
    value = config.get(key, default)
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise UserError(f"{path}: {key} is {shown(value)}; a number above 0 is needed")
    return float(value)


def check_heads(path: Path, found: Mapping[str, int], key: str) -> None:
    """Checks that the heads divide the hidden size.

    Raises:
      UserError: they do not.
    """
    if found["hidden_size"] % found["num_heads"]:
        raise UserError(f"{path}: {key} is {found['num_heads']}, which does not divide {found['hidden_size']}")
