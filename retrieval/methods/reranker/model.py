"""The cross-encoder (Nogueira & Cho 2019): a query and a passage in one row, to the relevance of the passage.

It is read from folders that `transformers` and `sentence_transformers.CrossEncoder` load, and written for them:

    config.json, model.safetensors    its family's model for sequence classification with one label
    config_sentence_transformers.json    where sentence-transformers 5 has written the folder; read, and not written

Letters of shapes beside those of `text`: C classes.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.models import encoder_folder, encoder_tensors, export_files, known_keys
from retrieval.models.dropout import dropout, split
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoder_tensors import TensorNames
from retrieval.models.encoders.family import FAMILIES
from retrieval.models.gelu import gelu
from retrieval.models.known_keys import ANY
from retrieval.models.module_folder import SETTINGS
from retrieval.models.pooling import POOLINGS
from retrieval.models.rngs import Rngs
from retrieval.models.text import Text
from retrieval.models.tower_head import ACTIVATIONS
from retrieval.models.transformer import INIT, Transformer, norm
from retrieval.models.transformer_config import TransformerConfig

Model = TypeVar("Model", bound=nnx.Module)
Meaning = TypeVar("Meaning")

# What sentence-transformers makes of the one logit, so that its scores are ours: itself, p(relevant), or its logarithm.
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_KINDS = {  # classes, and whether `sigmoid`
    "torch.nn.modules.linear.Identity": (1, False),
    _SIGMOID: (1, True),
    "torch.nn.modules.activation.LogSigmoid": (2, False),
}

SIGMOIDS = {"Identity": False, "Sigmoid": True}  # of one class: whether the score is the sigmoid

_SETTINGS = {
    "__version__": ANY,
    "model_type": ("CrossEncoder",),
    "activation_fn": ANY,
    "prompts": ANY,  # of which none is used where none is the default
}
# What stands between the encoder and the classifier, by the names of `Family.modules`.
_POOLER, _NORM, _CLASSIFIER = "pooler", "pooler_norm", "classifier"
CLS, MEAN, LAST = "cls", "mean", "last"
# Of a head with a norm, which is ModernBERT's: keys of its config -> the values that are understood.
_OF_HEAD = {"classifier_pooling": (CLS, MEAN), "classifier_activation": ("gelu",), "classifier_bias": (False,)}


def poolings(family: str) -> tuple[str, ...]:
    """Which vectors a classifier of a family may stand on; the first is the usual one.

    Where there is nothing between the encoder and the classifier, it reads the last token, as those of decoders do.
    """
    modules = FAMILIES[family].modules
    return (CLS, MEAN) if _NORM in modules else (CLS,) if _POOLER in modules else (LAST,)


class CrossEncoder(nnx.Module):
    """An encoder and a linear layer, with what the family's classifiers have between them.

    That is BERT's pooler on [CLS]; or ModernBERT's, a GELU and a norm, on [CLS] or the mean; or nothing, and the linear
    layer reads the last token and has no bias. With one class its logit is the score. With two, not relevant and
    relevant, the score is log p(relevant).
    """

    def __init__(
        self,
        config: TransformerConfig,
        classes: int,
        *,
        sigmoid: bool = False,
        pooling: str = "",
        activation: str = "tanh",
        rngs: nnx.Rngs,
    ):
        """Makes one with random weights, of 1 or 2 classes.

        Args:
          sigmoid: of one class: whether the score is the logit's sigmoid.
          pooling: one of `poolings`; '' for the first.
          activation: of BERT's pooler; DistilBERT's is "relu".
        """
        size, modules = config.hidden_size, FAMILIES[config.architecture.family].modules
        self.classes, self.sigmoid, self.activation = classes, sigmoid, ACTIVATIONS[activation]
        self.pooling = pooling or poolings(config.architecture.family)[0]
        self.encoder = Transformer(config, rngs=rngs)
        if _POOLER in modules:
            self.pooler = nnx.Linear(size, size, use_bias=_NORM not in modules, kernel_init=INIT, rngs=rngs)
        if _NORM in modules:
            self.pooler_norm = norm(config, size, rngs)
        self.classifier = nnx.Linear(size, classes, use_bias=_POOLER in modules, kernel_init=INIT, rngs=rngs)

    def __call__(self, pairs: Text, dropout_key: jax.Array | None) -> jax.Array:
        """Logits, float32 [B, C].

        Args:
          pairs: [CLS] query [SEP] passage [SEP], of token types 0 and 1, as one text each.
        """
        encoder_key, key = split(dropout_key, 2)
        hidden_RLH = self.encoder(pairs, dropout_key=encoder_key)
        x_BH = POOLINGS[self.pooling](hidden_RLH, pairs).astype(jnp.float32)
        if hasattr(self, _NORM):
            x_BH = self.pooler_norm(gelu(self.pooler(x_BH)))
        elif hasattr(self, _POOLER):
            x_BH = self.activation(self.pooler(x_BH))
        return self.classifier(dropout(x_BH, self.encoder.config.dropout, key))

    def logits(self, pairs: Text) -> jax.Array:
        """Logits of relevance, float32 [B]: of two classes their difference."""
        logits_BC = self(pairs, None)
        return logits_BC[:, 0] if self.classes == 1 else logits_BC[:, 1] - logits_BC[:, 0]

    def scores(self, pairs: Text) -> jax.Array:
        """What passages are ranked by, float32 [B], whatever other pairs are in the batch."""
        score_B = relevance(self(pairs, None))
        return jax.nn.sigmoid(score_B) if self.sigmoid else score_B


def relevance(logits_BC: jax.Array) -> jax.Array:
    """The score of each pair, [B]; or [B, K] from [B, K, C]."""
    if logits_BC.shape[-1] == 1:
        return logits_BC[..., 0]
    # A log_softmax is the same number, but in float32 it is 0 for all pairs of which the model is sure.
    return jax.nn.log_sigmoid(logits_BC[..., 1] - logits_BC[..., 0])


def write_cross_encoder(folder: Path, model: CrossEncoder, pad_id: int = 0) -> None:
    """Writes a cross-encoder, but for its tokenizer, into a folder that is there.

    The softmax of two classes is the sigmoid of the difference of their logits. That is the label which is written.

    Args:
      pad_id: of padding: transformers looks for the last token before it.

    Raises:
      UserError: its family has no model with a classifier.
    """
    encoder_config = model.encoder.config
    family = FAMILIES[encoder_config.architecture.family]
    config = encoder_folder.written_config(encoder_config)
    (name,) = config["architectures"]
    if _CLASSIFIER not in family.modules:
        what = f"transformers has no reranker of the family {encoder_config.architecture.family} to export to"
        raise UserError(f"{what}: rerank with the work directory")
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    if model.classes == 2:
        params[_CLASSIFIER] = {name: x[..., 1:] - x[..., :1] for name, x in params[_CLASSIFIER].items()}
    names = TensorNames.of(encoder_config.architecture)
    head = encoder_tensors.to_tensors({name: x for name, x in params.items() if name != "encoder"}, names)
    inside = {name for name in head if name.startswith("pooler.")}  # of the encoder, for transformers
    tensors = encoder_tensors.to_tensors(params["encoder"], names) | {name: head.pop(name) for name in inside}
    export_files.write_tensors(folder, {family.prefix + name: x for name, x in tensors.items()} | head)
    activation = next(name for name, kind in _KINDS.items() if kind == (model.classes, model.sigmoid))
    config |= {"architectures": [name.removesuffix("Model") + "ForSequenceClassification"]}
    config |= {"id2label": {"0": "relevance"}, "label2id": {"relevance": 0}}
    config |= {} if family.skipped_positions else {"pad_token_id": pad_id}
    config |= {"classifier_pooling": model.pooling, "classifier_bias": False} if hasattr(model, _NORM) else {}
    files.write_json(folder / "config.json", config | {"sentence_transformers": {"activation_fn": activation}})


def check_cross_encoder(folder: EncoderFolder) -> dict[str, Any]:
    """Checks that a folder has a cross-encoder that can be read, without its weights; `CrossEncoder`'s arguments.

    Raises:
      UserError: it has none, or it is not understood what the library makes of the logit.
    """
    needed = {_POOLER, _NORM} & FAMILIES[folder.family].modules.keys()
    if folder.classes not in (1, 2) or not all(map(folder.has, needed)):
        there = f"a {folder.family} whose classifier has {folder.classes} classes"
        raise UserError(f"{folder.path}: {there}; a model for sequence classification with 1 or 2 is needed")
    pooling = folder_pooling(folder)
    sizes = TransformerConfig(**folder.sizes)
    shapes = nnx.eval_shape(lambda: CrossEncoder(sizes, folder.classes, pooling=pooling, rngs=Rngs(0)))
    folder.check_cross_encoder(nnx.to_pure_dict(nnx.state(shapes, nnx.Param)))
    kinds, settings = {known.rpartition(".")[2]: kind for known, kind in _KINDS.items()}, settings_of(folder)
    classes, sigmoid = (2, False) if folder.classes == 2 else activation_of(folder, settings, kinds)
    activation = "relu" if folder.family == "distilbert" else "tanh"
    return {"classes": classes, "sigmoid": sigmoid, "pooling": pooling, "activation": activation}


def folder_pooling(folder: EncoderFolder) -> str:
    """What the classifier of a folder stands on, whose head has to be its family's."""
    if len(usual := poolings(folder.family)) == 1:
        return usual[0]
    path, config = folder.files[0], files.read_json(folder.files[0])
    for key, values in _OF_HEAD.items():
        if (value := config.get(key)) is not None and value not in values:
            raise UserError(f"{path}: {key} is {value!r}, and only {' or '.join(map(repr, values))} is built here")
    return config.get("classifier_pooling") or usual[0]


def load_cross_encoder(folder: EncoderFolder, config: TransformerConfig) -> CrossEncoder:
    """The cross-encoder of such a folder. Its scores are those of `sentence_transformers.CrossEncoder.predict`.

    Args:
      config: of the folder's sizes, and with as many tokens as its vocabulary has.
    """
    model = CrossEncoder(config, **check_cross_encoder(folder), rngs=Rngs(0))

    def of_folder(like: Mapping[str, Any]) -> dict[str, Any]:
        head = folder.classifier({name: shapes for name, shapes in like.items() if name != "encoder"})
        return {"encoder": folder.encoder(like["encoder"])} | head

    return with_parameters(model, of_folder)


def with_parameters(model: Model, read: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Model:
    """The model with the parameters that `read` gives by the shapes of its own."""
    state = nnx.state(model, nnx.Param)
    params = read(nnx.to_pure_dict(state))
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, params))
    nnx.update(model, state)
    return model


def settings_of(folder: EncoderFolder, *more: str) -> dict[str, Any]:
    """The settings that sentence-transformers 5 keeps in a file of its own; `more` keys are understood, too."""
    return known_keys.read(folder.path / SETTINGS, _SETTINGS | dict.fromkeys(more, ANY), optional=True)


def activation_of(folder: EncoderFolder, settings: Mapping[str, Any], kinds: Mapping[str, Meaning]) -> Meaning:
    """What `kinds` has for what the library makes of one logit; a sigmoid where no file says so.

    `settings` are as `settings_of` gives them.
    """
    path, config = folder.files[0], files.read_json(folder.files[0])
    if not isinstance(version_4 := config.get("sentence_transformers") or {}, dict):
        raise UserError(f"{path}: sentence_transformers is no dict of settings; copy the file again")
    name = version_4.get("activation_fn") or config.get("sbert_ce_default_activation_function") or _SIGMOID
    if name_5 := settings.get("activation_fn"):
        name, path = name_5, folder.path / SETTINGS
    if (kind := str(name).rpartition(".")[2]) not in kinds:
        raise UserError(f"{path}: its scores are the {name} of a logit; only {', '.join(kinds)} are known here")
    return kinds[kind]
