"""Cross-encoders as folders that `transformers` and `sentence_transformers.CrossEncoder` load, there and back.

    config.json, model.safetensors    a BertForSequenceClassification with one label

The tokenizer's files are not written here.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from retrieval import files
from retrieval.errors import UserError
from retrieval.models import bert_tensors, export_files, hugging_face
from retrieval.models.cross_encoder import CrossEncoder
from retrieval.models.hugging_face import BertFolder

# What sentence-transformers makes of the one logit, so that its scores are ours: itself, or log p(relevant).
_ACTIVATIONS = {1: "torch.nn.modules.linear.Identity", 2: "torch.nn.modules.activation.LogSigmoid"}

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
    activation = {"sentence_transformers": {"activation_fn": _ACTIVATIONS[model.classes]}}
    kind = {"architectures": ["BertForSequenceClassification"]}
    config = hugging_face.bert_config(model.encoder.config) | kind | labels | activation
    files.write_json(folder / "config.json", config)


def read_cross_encoder(folder: BertFolder, like: CrossEncoder) -> dict[str, Any]:
    """The parameters of a cross-encoder from such a folder, of anybody's making.

    Args:
      like: a model of as many classes and of the same sizes, or its shapes.

    Raises:
      UserError: the folder has no cross-encoder, or one of another number of classes, or its weights do not fit.
    """
    shapes = nnx.to_pure_dict(nnx.state(like, nnx.Param))
    if folder.kind != "bert" or folder.classes != like.classes:
        raise UserError(
            f"{folder.path}: a {folder.kind} whose classifier has {folder.classes} classes; a bert with "
            f"{like.classes} is needed (a BertForSequenceClassification)"
        )
    head = folder.classifier({name: shapes[name] for name in ("pooler", "classifier")})
    if head is None:
        raise UserError(f"{folder.path}: its classifier stands on no pooler; copy it again")
    return {"encoder": folder.encoder(shapes["encoder"])} | head
