"""Cross-encoders as folders that `transformers` and `sentence_transformers.CrossEncoder` load, there and back.

    config.json, model.safetensors    a BertForSequenceClassification with one label
    config_sentence_transformers.json    where sentence-transformers 5 has written the folder; read, and not written

The tokenizer's files are not written here.
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
from retrieval.models import bert_tensors, export_files, hugging_face
from retrieval.models.cross_encoder import CrossEncoder
from retrieval.models.hugging_face import BertFolder
from retrieval.models.rngs import Rngs
from retrieval.models.transformer import TransformerConfig

# What sentence-transformers makes of the one logit, so that its scores are ours: itself, p(relevant), or its logarithm.
_IDENTITY = "torch.nn.modules.linear.Identity"
_SIGMOID, _LOG_SIGMOID = (f"torch.nn.modules.activation.{name}" for name in ("Sigmoid", "LogSigmoid"))
_KINDS = {_IDENTITY: (1, False), _SIGMOID: (1, True), _LOG_SIGMOID: (2, False)}  # classes, and whether `sigmoid`

_ENCODER = "bert."


def write_cross_encoder(folder: Path, model: CrossEncoder) -> None:
    """Writes a cross-encoder, but for its tokenizer, into a folder that is there.

    The softmax of two classes is the sigmoid of the difference of their logits. That is the label which is written.
    """
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    if model.classes == 2:
        params["classifier"] = {name: x[..., 1:] - x[..., :1] for name, x in params["classifier"].items()}
    head = bert_tensors.to_tensors({"pooler": params["pooler"]})
    tensors = {_ENCODER + name: x for name, x in (bert_tensors.to_tensors(params["encoder"]) | head).items()}
    export_files.write_tensors(folder, tensors | bert_tensors.to_tensors({"classifier": params["classifier"]}))
    labels = {"id2label": {"0": "relevance"}, "label2id": {"relevance": 0}}
    name = next(name for name, kind in _KINDS.items() if kind == (model.classes, model.sigmoid))
    activation = {"sentence_transformers": {"activation_fn": name}}
    kind = {"architectures": ["BertForSequenceClassification"]}
    config = hugging_face.bert_config(model.encoder.config) | kind | labels | activation
    files.write_json(folder / "config.json", config)


def load_cross_encoder(folder: BertFolder, config: TransformerConfig) -> CrossEncoder:
    """The cross-encoder of such a folder. Its scores are those of `sentence_transformers.CrossEncoder.predict`.

    Args:
      config: of the folder's sizes.

    Raises:
      UserError: as `read_cross_encoder`, or the library makes something of its logit that is unknown here.
    """
    classes, sigmoid = max(1, folder.classes), False
    if classes == 1:
        name, path = _activation(folder)
        kinds = {known.rpartition(".")[2]: kind for known, kind in _KINDS.items()}
        if (last := name.rpartition(".")[2]) not in kinds:
            raise UserError(f"{path}: its scores are the {name} of a logit; only {', '.join(kinds)} are known here")
        classes, sigmoid = kinds[last]
    make = functools.partial(CrossEncoder, config, classes, sigmoid=sigmoid)
    params = read_cross_encoder(folder, nnx.eval_shape(lambda: make(rngs=Rngs(0))))
    model = make(rngs=Rngs(0))
    state = nnx.state(model, nnx.Param)
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, params))
    nnx.update(model, state)
    return model


def read_cross_encoder(folder: BertFolder, like: CrossEncoder) -> dict[str, Any]:
    """The parameters of a cross-encoder from such a folder, of anybody's making.

    Args:
      like: a model of as many classes and of the same sizes, or its shapes; of two classes where the folder has one.

    Raises:
      UserError: the folder has no cross-encoder, or one of another number of classes, or its weights do not fit.
    """
    shapes = nnx.to_pure_dict(nnx.state(like, nnx.Param))
    if folder.kind != "bert" or folder.classes not in (1, like.classes):
        raise UserError(
            f"{folder.path}: a {folder.kind} whose classifier has {folder.classes} classes; a bert with "
            f"{like.classes} is needed (a BertForSequenceClassification)"
        )
    head = folder.classifier({name: shapes[name] for name in ("pooler", "classifier")})
    if head is None:
        raise UserError(f"{folder.path}: its classifier stands on no pooler; copy it again")
    return {"encoder": folder.encoder(shapes["encoder"])} | head


def settings(folder: BertFolder) -> list[Path]:
    """The files, beside those of the weights, that tell what becomes of the logit."""
    return [path] if (path := folder.path / export_files.CONFIG).is_file() else []


def _activation(folder: BertFolder) -> tuple[str, Path]:
    """What the library makes of one logit, and the file that says so; a sigmoid where none does."""
    config_path = folder.files[0]
    for path in (*settings(folder), config_path):
        config = files.read_json(path)
        try:
            version_4 = config.get("sentence_transformers", {}).get("activation_fn")
            name = config.get("activation_fn") or version_4 or config.get("sbert_ce_default_activation_function")
        except AttributeError as error:
            raise UserError(f"{path}: not the config of a cross-encoder; copy it again") from error
        if name:
            return str(name), path
    return _SIGMOID, config_path
