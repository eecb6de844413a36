"""A folder with a BERT, a RoBERTa, an XLM-R or a DistilBERT: its sizes, and its weights as our parameters.

The folder is as Hugging Face's libraries write it (`config.json` beside the weights), or as Google published BERT
(`bert_config.json`, `bert_model.ckpt.*`, `vocab.txt`).
"""

import dataclasses
import functools
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.models import bert_tensors, tensor_files
from retrieval.models.transformer import TransformerConfig

_log = logging.getLogger(__name__)

CONFIGS = ("config.json", "bert_config.json")

# BERT's names of the sizes of a `TransformerConfig`.
_SIZES = dict(
    vocab_size="vocab_size",
    num_layers="num_hidden_layers",
    hidden_size="hidden_size",
    num_heads="num_attention_heads",
    mlp_size="intermediate_size",
    max_length="max_position_embeddings",
    type_vocab_size="type_vocab_size",
    layer_norm_epsilon="layer_norm_eps",
)
_DISTILBERT_SIZES = _SIZES | dict(num_layers="n_layers", hidden_size="dim", num_heads="n_heads", mlp_size="hidden_dim")

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
class _Kind:
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


_KINDS = {
    "bert": _Kind(_SIZES, {"layer_norm_eps": 1e-12}, {}),
    # Positions count from the id of padding + 1, in fairseq's manner.
    "roberta": _Kind(_SIZES, {"layer_norm_eps": 1e-12}, _ROBERTA_NAMES, skipped_positions=2),
    "xlm-roberta": _Kind(_SIZES, {"layer_norm_eps": 1e-12}, _ROBERTA_NAMES, skipped_positions=2),
    "distilbert": _Kind(_DISTILBERT_SIZES, {"layer_norm_eps": 1e-12, "type_vocab_size": 1}, _DISTILBERT_NAMES),
}
# Fields that change what a model computes -> the value with which it computes what ours does.
_EXPRESSED = {
    "hidden_act": "gelu",
    "activation": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
}
_ROBERTA_PAD_ID = 1

_HEAD, _NEXT, _POOLER, _CLASSIFIER = "cls.predictions.", "cls.seq_relationship.", "pooler.", "classifier."
# What has no place in any model of ours: buffers.
_UNUSED = re.compile(r"^embeddings\.(position_ids|token_type_ids)$")


@dataclasses.dataclass(frozen=True, eq=False)
class BertFolder:
    """A folder that has been looked at; its weights are read when they are asked for, once.

    Attributes:
      sizes: fields of a `TransformerConfig`: those on which shapes and results depend. `max_length` is the longest
        text that it has positions for.
    """

    path: Path
    kind: str
    sizes: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> "BertFolder":
        """Looks at a folder's config, and which files of weights there are.

        Raises:
          UserError: there is no such folder, a field or a file is missing, or its model is not one of ours.
        """
        config_path = _config_of(path)
        config = files.read_json(config_path)
        if not isinstance(config, dict):
            raise UserError(f"{config_path}: not the config of a model; copy it again")
        kind = config.get("model_type", "bert")
        if not isinstance(kind, str) or kind not in _KINDS:
            raise UserError(f"{config_path}: model_type is {kind!r}; one of {', '.join(_KINDS)} is needed")
        for field, needed in _EXPRESSED.items():
            if config.get(field, needed) != needed:
                raise UserError(f"{config_path}: {field} is {config[field]!r}; only {needed!r} is what our model does")
        if kind in ("roberta", "xlm-roberta") and config.get("pad_token_id", _ROBERTA_PAD_ID) != _ROBERTA_PAD_ID:
            raise UserError(f"{config_path}: pad_token_id is {config['pad_token_id']!r}; only {_ROBERTA_PAD_ID} fits")
        tensor_files.find(path)
        return cls(Path(path), kind, _sizes(config_path, config, _KINDS[kind]))

    @property
    def files(self) -> list[Path]:
        """Its config, and the files that its weights are read from."""
        return [_config_of(self.path), *tensor_files.find(self.path)]

    @property
    def has_head(self) -> bool:
        """Whether the weights of a masked language model's head are there."""
        return any(name.startswith(_HEAD) for name in self._tensors)

    def encoder(self, like: Mapping[str, Any], token_ids: Sequence[int] | None = None) -> dict[str, Any]:
        """The parameters of the encoder, as `bert_tensors.to_parameters` gives them.

        Args:
          token_ids: the folder's id of each of our tokens, [V]; None where they are the same.

        Raises:
          UserError: the weights cannot be read, or do not fit.
        """
        others = (_HEAD, _NEXT, _POOLER, _CLASSIFIER)
        tensors = {name: tensor for name, tensor in self._tensors.items() if not name.startswith(others)}
        return bert_tensors.to_parameters(_permuted(tensors, token_ids), like, str(self.path))

    @property
    def classes(self) -> int:
        """The classes of a cross-encoder's classifier; 0 where the folder has none."""
        weight = self._tensors.get(f"{_CLASSIFIER}weight")
        return len(weight) if weight is not None and weight.ndim else 0

    def classifier(self, like: Mapping[str, Any]) -> dict[str, Any] | None:
        """The parameters of a cross-encoder's pooler and, if `like` has one, of its classifier; None without a pooler.

        A single logit x becomes the two of `like`, 0 and x, if that has two classes: log p(relevant) is log sigmoid(x).

        Raises:
          UserError: the weights do not fit.
        """
        wanted = tuple(f"{module}." for module in like)
        tensors = {name: tensor for name, tensor in self._tensors.items() if name.startswith(wanted)}
        if not any(name.startswith(_POOLER) for name in tensors):
            return None
        if "classifier" in like and like["classifier"]["bias"].shape == (2,):
            single = {name: x for name, x in tensors.items() if name.startswith(_CLASSIFIER) and x.shape[:1] == (1,)}
            tensors |= {name: np.concatenate([np.zeros_like(x), x]) for name, x in single.items()}
        return bert_tensors.to_parameters(tensors, like, str(self.path))

    def next_sentence_head(self, like: Mapping[str, Any]) -> dict[str, Any] | None:
        """The parameters of the pooler and of the head of next-sentence prediction, or None where there is none.

        Raises:
          UserError: the weights do not fit.
        """
        tensors = {name: tensor for name, tensor in self._tensors.items() if name.startswith((_NEXT, _POOLER))}
        if not any(name.startswith(_NEXT) for name in tensors):
            return None
        return bert_tensors.to_parameters(tensors, like, str(self.path))

    def mlm_head(self, like: Mapping[str, Any], token_ids: Sequence[int] | None = None) -> dict[str, Any] | None:
        """The parameters of the head that predicts masked tokens, or None where the folder has none; see `encoder`."""
        if not self.has_head:
            return None
        head = {name: tensor for name, tensor in self._tensors.items() if name.startswith(_HEAD)}
        table = self._tensors.get("embeddings.word_embeddings.weight")
        output = head.pop(f"{_HEAD}decoder.weight", None)
        if output is not None and (table is None or not np.array_equal(output, table)):
            raise UserError(
                f"{self.path}: its masked language model has an output layer of its own, and ours has the token "
                "embeddings there; use a folder whose weights are tied"
            )
        if (bias := head.pop(f"{_HEAD}decoder.bias", None)) is not None:
            head.setdefault(f"{_HEAD}bias", bias)
        return bert_tensors.to_parameters(_permuted(head, token_ids), like, str(self.path))

    @functools.cached_property
    def _tensors(self) -> dict[str, np.ndarray]:
        """The weights under BERT's names, without those that have no place in a model of ours."""
        kind, tensors, unused = _KINDS[self.kind], {}, []
        for name, tensor in tensor_files.read(self.path).items():
            # TensorFlow's matrices are [in, out].
            tensor = tensor.T if name.endswith("/kernel") else tensor
            name = _bert_name(name, kind)
            if _UNUSED.match(name):
                unused.append(name)
            elif name in tensors:
                raise UserError(f"{self.path}: two of its tensors are {name}; copy it again")
            else:
                tensors[name] = tensor
        if unused:
            _log.info("%s: not used: %s", self.path, ", ".join(sorted(unused)))
        if self.kind == "distilbert":
            tensors["embeddings.token_type_embeddings.weight"] = np.zeros((1, self.sizes["hidden_size"]), np.float32)
        positions = "embeddings.position_embeddings.weight"
        if positions in tensors and tensors[positions].ndim:
            tensors[positions] = tensors[positions][kind.skipped_positions :]
        return tensors


def is_bert(folder: Path) -> bool:
    """Whether the config in a folder is that of a model with weights, and not of a run."""
    try:
        config = files.read_json(_config_of(folder))
    except UserError:
        return False
    return isinstance(config, dict) and ("model_type" in config or "hidden_size" in config)


def bert_config(config: TransformerConfig) -> dict[str, Any]:
    """A `config.json` that makes Hugging Face's `BertModel` the same encoder.

    Raises:
      UserError: it has its LayerNorms before the sublayers, which BERT has not.
    """
    if config.pre_norm:
        raise UserError("an encoder with pre_norm cannot be written as a BERT, whose LayerNorms follow the sublayers")
    sizes = {theirs: getattr(config, ours) for ours, theirs in _SIZES.items()}
    dropout = {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.attention_rate}
    rest = {"hidden_act": "gelu", "initializer_range": 0.02, "pad_token_id": 0, "dtype": "float32"}
    return {"architectures": ["BertModel"], "model_type": "bert"} | sizes | dropout | rest


def _config_of(folder: Path) -> Path:
    for name in CONFIGS:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder}: no {' and no '.join(CONFIGS)}, one of which a folder of BERT's weights has")


def _sizes(path: Path, config: Mapping[str, Any], kind: _Kind) -> dict[str, Any]:
    sizes = {}
    for ours, field in kind.sizes.items():
        value = config.get(field, kind.defaults.get(field))
        if type(value) is not (float if ours == "layer_norm_epsilon" else int) or value <= 0:
            raise UserError(f"{path}: {field} is {value!r}; a number above 0 is needed; copy the file again")
        sizes[ours] = value
    sizes["max_length"] -= kind.skipped_positions
    return sizes


def _bert_name(name: str, kind: _Kind) -> str:
    """The name that Hugging Face's `BertModel` has for a tensor."""
    name = re.sub(r"^(bert|roberta|distilbert)\.", "", name.replace("/", "."))
    for theirs, berts in {**_OLD_NAMES, **kind.names}.items():
        name = re.sub(theirs, berts, name)
    return name


def _permuted(tensors: Mapping[str, np.ndarray], token_ids: Sequence[int] | None) -> Mapping[str, np.ndarray]:
    """The tensors with the rows of the vocabulary in our order. Those of another size will be found not to fit."""
    if token_ids is None:
        return tensors
    names = {"embeddings.word_embeddings.weight", f"{_HEAD}bias"} & tensors.keys()
    names = [name for name in names if tensors[name].shape[:1] == (len(token_ids),)]
    return {**tensors, **{name: tensors[name][np.asarray(token_ids)] for name in names}}
