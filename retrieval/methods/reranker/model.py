"""The cross-encoder (Nogueira & Cho 2019): a query and a passage in one row, to the relevance of the passage.

It is read from folders that `transformers` and `sentence_transformers.CrossEncoder` load, and written for them:

    config.json, model.safetensors    a BertForSequenceClassification with one label; one of RoBERTa or XLM-R is read
    config_sentence_transformers.json    where sentence-transformers 5 has written the folder; read, and not written

Letters of shapes beside those of `text`: C classes.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from retrieval import files
from retrieval.errors import UserError
from retrieval.models import encoder_folder, encoder_tensors, export_files, known_keys
from retrieval.models.dropout import dropout, split
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoder_tensors import TensorNames
from retrieval.models.known_keys import ANY
from retrieval.models.module_folder import SETTINGS
from retrieval.models.pooling import first
from retrieval.models.rngs import Rngs
from retrieval.models.text import Text
from retrieval.models.transformer import INIT, Transformer, TransformerConfig

# What sentence-transformers makes of the one logit, so that its scores are ours: itself, p(relevant), or its logarithm.
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_KINDS = {  # classes, and whether `sigmoid`
    "torch.nn.modules.linear.Identity": (1, False),
    _SIGMOID: (1, True),
    "torch.nn.modules.activation.LogSigmoid": (2, False),
}

_ENCODER = "bert."
_PAIRS_OF_TWO_SEPARATORS = ("roberta", "xlm-roberta")
_READ = ("bert", *_PAIRS_OF_TWO_SEPARATORS)
_SETTINGS = {
    "__version__": ANY,
    "model_type": ("CrossEncoder",),
    "activation_fn": ANY,
    "prompts": ANY,  # of which none is used where none is the default
}


class CrossEncoder(nnx.Module):
    """BERT with its pooler, dropout and a linear layer, as Hugging Face's `BertForSequenceClassification`.

    With one class its logit is the score. With two, not relevant and relevant, the score is log p(relevant).
    """

    def __init__(self, config: TransformerConfig, classes: int, *, sigmoid: bool = False, rngs: nnx.Rngs):
        """Makes one with random weights, of 1 or 2 classes.

        Args:
          sigmoid: of one class: whether the score is the logit's sigmoid.
        """
        self.classes, self.sigmoid = classes, sigmoid
        self.encoder = Transformer(config, rngs=rngs)
        self.pooler = nnx.Linear(config.hidden_size, config.hidden_size, kernel_init=INIT, rngs=rngs)
        self.classifier = nnx.Linear(config.hidden_size, classes, kernel_init=INIT, rngs=rngs)

    def __call__(self, pairs: Text, dropout_key: jax.Array | None) -> jax.Array:
        """Logits, float32 [B, C].

        Args:
          pairs: [CLS] query [SEP] passage [SEP], of token types 0 and 1, as one text each.
        """
        encoder_key, key = split(dropout_key, 2)
        cls_BH = first(self.encoder(pairs, dropout_key=encoder_key), pairs).astype(jnp.float32)
        pooled_BH = dropout(jnp.tanh(self.pooler(cls_BH)), self.encoder.config.dropout, key)
        return self.classifier(pooled_BH)

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


def write_cross_encoder(folder: Path, model: CrossEncoder) -> None:
    """Writes a cross-encoder, but for its tokenizer, into a folder that is there.

    The softmax of two classes is the sigmoid of the difference of their logits. That is the label which is written.
    """
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    if model.classes == 2:
        params["classifier"] = {name: x[..., 1:] - x[..., :1] for name, x in params["classifier"].items()}
    names = TensorNames.of(model.encoder.config.architecture)
    head = encoder_tensors.to_tensors({"pooler": params["pooler"]}, names)
    encoder = encoder_tensors.to_tensors(params["encoder"], names)
    tensors = {_ENCODER + name: x for name, x in (encoder | head).items()}
    classifier = encoder_tensors.to_tensors({"classifier": params["classifier"]}, names)
    export_files.write_tensors(folder, tensors | classifier)
    name = next(name for name, kind in _KINDS.items() if kind == (model.classes, model.sigmoid))
    config = encoder_folder.written_config(model.encoder.config) | {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "relevance"},
        "label2id": {"relevance": 0},
        "sentence_transformers": {"activation_fn": name},
    }
    files.write_json(folder / "config.json", config)


def check_cross_encoder(folder: EncoderFolder) -> tuple[int, bool]:
    """Checks that a folder has a cross-encoder that can be read, without its weights; `CrossEncoder`'s arguments.

    Returns its classes, and whether its score is the sigmoid of a logit.

    Raises:
      UserError: it has none, or it is not understood what the library makes of the logit.
    """
    if folder.family not in _READ or folder.classes not in (1, 2) or not folder.has_pooler:
        raise UserError(
            f"{folder.path}: a {folder.family} whose classifier has {folder.classes} classes; one of "
            f"{', '.join(_READ)} with a pooler and 1 or 2 classes is needed, such as a BertForSequenceClassification"
        )
    make = functools.partial(CrossEncoder, TransformerConfig(**folder.sizes), folder.classes)
    shapes = nnx.eval_shape(lambda: make(rngs=Rngs(0)))
    folder.check_cross_encoder(nnx.to_pure_dict(nnx.state(shapes, nnx.Param)))
    name, path = _activation(folder)
    if folder.classes == 2:
        return 2, False
    kinds = {known.rpartition(".")[2]: kind for known, kind in _KINDS.items()}
    if (last := name.rpartition(".")[2]) not in kinds:
        raise UserError(f"{path}: its scores are the {name} of a logit; only {', '.join(kinds)} are known here")
    return kinds[last]


def separators(folder: EncoderFolder) -> int:
    """How many separators stand between the two texts of a pair: as its tokenizer's file says, or else its kind."""
    path = folder.place / "tokenizer.json"
    config = files.read_json(path) if path.is_file() else {}
    template: Any = config.get("post_processor") if isinstance(config, dict) else None
    try:
        while template["type"] == "Sequence":
            template = template["processors"][-1]
        if template["type"] == "TemplateProcessing":
            kinds = ["".join(part) for part in template["pair"]]
            texts = [place for place, kind in enumerate(kinds) if kind == "Sequence"]
            return texts[1] - texts[0] - 1
        return {"BertProcessing": 1, "RobertaProcessing": 2}[template["type"]]
    except (TypeError, KeyError, IndexError):
        return 2 if folder.family in _PAIRS_OF_TWO_SEPARATORS else 1


def load_cross_encoder(folder: EncoderFolder, config: TransformerConfig) -> CrossEncoder:
    """The cross-encoder of such a folder. Its scores are those of `sentence_transformers.CrossEncoder.predict`.

    Args:
      config: of the folder's sizes, and with as many tokens as its vocabulary has.

    Raises:
      UserError: as `check_cross_encoder`, or the weights cannot be read.
    """
    classes, sigmoid = check_cross_encoder(folder)
    model = CrossEncoder(config, classes, sigmoid=sigmoid, rngs=Rngs(0))
    state = nnx.state(model, nnx.Param)
    like = nnx.to_pure_dict(state)
    head = folder.classifier({name: like[name] for name in ("pooler", "classifier")}) or {}
    params = {"encoder": folder.encoder(like["encoder"])} | head
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, params))
    nnx.update(model, state)
    return model


def settings(folder: EncoderFolder) -> list[Path]:
    """The files, beside those of the weights, that tell what becomes of the logit."""
    return [path] if (path := folder.path / SETTINGS).is_file() else []


def _activation(folder: EncoderFolder) -> tuple[str, Path]:
    """What the library makes of one logit, and the file that says so; a sigmoid where none does."""
    own, config_path = folder.path / SETTINGS, folder.files[0]
    if name := known_keys.read(own, _SETTINGS, optional=True).get("activation_fn"):
        return str(name), own
    config = files.read_json(config_path)
    version_4 = config.get("sentence_transformers") or {}
    if not isinstance(version_4, dict):
        raise UserError(f"{config_path}: sentence_transformers is no dict of settings; copy the file again")
    name = version_4.get("activation_fn") or config.get("sbert_ce_default_activation_function")
    return str(name or _SIGMOID), config_path
