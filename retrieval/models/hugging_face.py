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
from retrieval.models import bert_kinds, bert_tensors, tensor_files
from retrieval.models.bert_kinds import KINDS, SIZES
from retrieval.models.known_keys import shown
from retrieval.models.transformer import TransformerConfig
from retrieval.runtime import model_folder

_log = logging.getLogger(__name__)

# Tensors by which the sizes of a config are checked -> their axes, as fields of a `TransformerConfig`.
_SHAPES = {
    "embeddings.word_embeddings.weight": ("vocab_size", "hidden_size"),
    "embeddings.position_embeddings.weight": ("max_length", "hidden_size"),
    "embeddings.token_type_embeddings.weight": ("type_vocab_size", "hidden_size"),
    "encoder.layer.0.intermediate.dense.weight": ("mlp_size", "hidden_size"),
}

_HEAD, _NEXT, _POOLER, _CLASSIFIER = "cls.predictions.", "cls.seq_relationship.", "pooler.", "classifier."
# What has no place in any model of ours: buffers.
_UNUSED = re.compile(r"^embeddings\.(position_ids|token_type_ids)$")
# A RoBERTa's pooler, beside the head of a cross-encoder that does not stand on it.
_UNUSED_POOLER = re.compile(r"^(roberta\.)?pooler\.")


@dataclasses.dataclass(frozen=True, eq=False)
class BertFolder:
    """A folder that has been looked at; its weights are read when they are asked for, once.

    Attributes:
      path: as it was named.
      place: the folder with the encoder, `path` itself or one below it.
      sizes: fields of a `TransformerConfig`: those on which shapes and results depend. `max_length` is the longest
        text that it has positions for.
    """

    path: Path
    place: Path
    kind: str
    sizes: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> "BertFolder":
        """Looks at a folder's config, and at the shapes of its weights, whose values are not read.

        Raises:
          UserError: there is no such folder, a field or a file is missing, its model is not one of ours, or it may be
            for what its config says, or the weights are of other sizes than that.
        """
        model_folder.check_sums(path)
        place = model_folder.encoder_folder(Path(path))
        config_path = bert_kinds.config_of(place)
        kind, sizes = bert_kinds.read(config_path)
        folder = cls(Path(path), place, kind, sizes)
        folder._check_shapes(config_path)
        return folder

    @property
    def files(self) -> list[Path]:
        """Its config, and the files that its weights are read from."""
        return [bert_kinds.config_of(self.place), *tensor_files.find(self.place)]

    @property
    def has_head(self) -> bool:
        """Whether the weights of a masked language model's head are there."""
        return any(name.startswith(_HEAD) for name in self._shapes)

    def encoder(self, like: Mapping[str, Any], token_ids: Sequence[int] | None = None) -> dict[str, Any]:
        """The parameters of the encoder, as `bert_tensors.to_parameters` gives them.

        Args:
          token_ids: the folder's id of each of our tokens, [V]; None where they are the same.

        Raises:
          UserError: the weights cannot be read, or do not fit.
        """
        others = (_HEAD, _NEXT, _POOLER, _CLASSIFIER)
        tensors = {name: tensor for name, tensor in self._tensors.items() if not name.startswith(others)}
        tokens = like["token_embedding"]["embedding"].shape[0]
        return bert_tensors.to_parameters(_of_tokens(tensors, token_ids, tokens), like, str(self.path))

    def check_cross_encoder(self, like: Mapping[str, Any]) -> None:
        """Checks that every parameter of a cross-encoder has its tensor, and no tensor is left over, by their shapes.

        Args:
          like: the shapes of one of the folder's sizes and classes.

        Raises:
          UserError: they do not fit.
        """
        tensors = {name: tensor for name, tensor in self._shapes.items() if not name.startswith((_HEAD, _NEXT))}
        heads = {name: like[name] for name in ("pooler", "classifier")}
        bert_tensors.check_shapes(tensors, {**like["encoder"], **heads}, str(self.path))

    @property
    def classes(self) -> int:
        """The classes of a cross-encoder's classifier; 0 where the folder has none."""
        weight = self._shapes.get(f"{_CLASSIFIER}weight")
        return len(weight) if weight is not None and weight.ndim else 0

    @property
    def has_pooler(self) -> bool:
        """Whether there is what a cross-encoder's classifier stands on."""
        return any(name.startswith(_POOLER) for name in self._shapes)

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
        return bert_tensors.to_parameters(_of_tokens(head, token_ids, len(like["bias"])), like, str(self.path))

    @functools.cached_property
    def _tensors(self) -> dict[str, np.ndarray]:
        return self._read(values=True)

    @functools.cached_property
    def _shapes(self) -> dict[str, np.ndarray]:
        return self._read(values=False)

    def _read(self, values: bool) -> dict[str, np.ndarray]:
        """The weights under BERT's names, without those that have no place in a model of ours."""
        kind, tensors, unused = KINDS[self.kind], {}, []
        published = tensor_files.read(self.place, values)
        has_head = any(name.startswith(f"{_CLASSIFIER}dense.") for name in published)
        for name, tensor in published.items():
            # TensorFlow's matrices are [in, out].
            tensor = tensor.T if name.endswith("/kernel") else tensor
            original, name = name, kind.bert_name(name)
            if _UNUSED.match(name) or (has_head and _UNUSED_POOLER.match(original)):
                unused.append(name)
            elif name in tensors:
                raise UserError(f"{self.path}: two of its tensors are {name}; copy it again")
            else:
                tensors[name] = tensor
        if unused and values:
            _log.info("%s: not used: %s", self.path, ", ".join(sorted(unused)))
        if self.kind == "distilbert":
            zeros = np.broadcast_to(np.float32(0), (1, self.sizes["hidden_size"]))
            tensors["embeddings.token_type_embeddings.weight"] = zeros
        positions = "embeddings.position_embeddings.weight"
        if positions in tensors and tensors[positions].ndim:
            tensors[positions] = tensors[positions][kind.skipped_positions :]
        return tensors

    def _check_shapes(self, config: Path) -> None:
        """Compares the sizes of the config with the weights, before anything of these sizes is made.

        Raises:
          UserError: they differ.
        """
        shapes, fields = {name: array.shape for name, array in self._shapes.items()}, KINDS[self.kind].sizes
        weights = tensor_files.find(self.place)[0]
        layers = {int(match[1]) for name in shapes if (match := re.match(r"encoder\.layer\.(\d{1,9})\.", name))}
        if layers != set(range(min(self.sizes["num_layers"], len(layers) + 1))):
            raise UserError(
                f"{config}: {fields['num_layers']} is {self.sizes['num_layers']}, and {weights.name} has tensors of "
                f"{len(layers)} layers: copy both again"
            )
        for name, axes in _SHAPES.items():
            shape, wanted = shapes.get(name), tuple(self.sizes[size] for size in axes)
            if shape is None:
                raise UserError(f"{weights}: {name} is missing, which an encoder has; copy it again")
            # Of a longer table the first positions are taken.
            if shape[:1] > wanted[:1] and axes[0] == "max_length":
                shape = (wanted[0], *shape[1:])
            if shape != wanted:
                size = next((size for size, a, b in zip(axes, wanted, shape) if a != b), axes[0])
                value = shown(self.sizes[size] + (KINDS[self.kind].skipped_positions if size == "max_length" else 0))
                raise UserError(
                    f"{config}: {fields[size]} is {value}, and in {weights.name} {name} is {list(shapes[name])}: copy "
                    "both again"
                )


def is_bert(folder: Path) -> bool:
    """Whether a folder has a model's weights, and is no work directory; a model of sentence-transformers is one."""
    if model_folder.has_modules(folder):
        return True
    try:
        config = files.read_json(bert_kinds.config_of(folder))
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
    sizes = {theirs: getattr(config, ours) for ours, theirs in SIZES.items()}
    dropout = {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.attention_rate}
    rest = {"hidden_act": "gelu", "initializer_range": 0.02, "pad_token_id": 0, "dtype": "float32"}
    return {"architectures": ["BertModel"], "model_type": "bert"} | sizes | dropout | rest


def _of_tokens(
    tensors: Mapping[str, np.ndarray], token_ids: Sequence[int] | None, tokens: int
) -> Mapping[str, np.ndarray]:
    """The tensors with one row of the vocabulary for each of our tokens, in our order; spare rows are left out.

    Tables with too few will be found not to fit.
    """
    names = {"embeddings.word_embeddings.weight", f"{_HEAD}bias"} & tensors.keys()
    rows = np.arange(tokens) if token_ids is None else np.asarray(token_ids)
    names = [name for name in names if tensors[name].shape[:1] > (rows.max(initial=0),)]
    return {**tensors, **{name: tensors[name][rows] for name in names}}
