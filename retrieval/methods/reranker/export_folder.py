"""Cross-encoders as folders that `transformers` and `sentence_transformers.CrossEncoder` load, there and back.

    config.json, model.safetensors    a BertForSequenceClassification with one label; one of RoBERTa or XLM-R is read
    config_sentence_transformers.json    where sentence-transformers 5 has written the folder; read, and not written

The tokenizer's files are not written here.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from retrieval import files, model_folder
from retrieval.errors import UserError
from retrieval.methods.reranker.model import CrossEncoder
from retrieval.models import bert_tensors, export_files, hugging_face, known_keys
from retrieval.models.hugging_face import BertFolder
from retrieval.models.known_keys import ANY
from retrieval.models.module_folder import SETTINGS
from retrieval.models.rngs import Rngs
from retrieval.models.transformer import TransformerConfig

# What sentence-transformers makes of the one logit, so that its scores are ours: itself, p(relevant), or its logarithm.
_IDENTITY = "torch.nn.modules.linear.Identity"
_SIGMOID, _LOG_SIGMOID = (f"torch.nn.modules.activation.{name}" for name in ("Sigmoid", "LogSigmoid"))
_KINDS = {_IDENTITY: (1, False), _SIGMOID: (1, True), _LOG_SIGMOID: (2, False)}  # classes, and whether `sigmoid`

_ENCODER = "bert."
_PAIRS_OF_TWO_SEPARATORS = ("roberta", "xlm-roberta")
_READ = ("bert", *_PAIRS_OF_TWO_SEPARATORS)
_SETTINGS = {
    "__version__": ANY,
    "model_type": ("CrossEncoder",),
    "activation_fn": ANY,
    "prompts": ANY,  # of which none is used where none is the default
}


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


def check_cross_encoder(folder: BertFolder) -> tuple[int, bool]:
    """Checks that a folder has a cross-encoder that can be read, without its weights; `CrossEncoder`'s arguments.

    Returns its classes, and whether its score is the sigmoid of a logit.

    Raises:
      UserError: it has none, or it is not understood what the library makes of the logit.
    """
    if folder.kind not in _READ or folder.classes not in (1, 2):
        raise UserError(
            f"{folder.path}: a {folder.kind} whose classifier has {folder.classes} classes; one of {', '.join(_READ)} "
            "with 1 or 2 is needed (a BertForSequenceClassification or XLMRobertaForSequenceClassification)"
        )
    if not folder.has_pooler:
        raise UserError(f"{folder.path}: its classifier stands on no pooler; copy it again")
    if model_folder.has_modules(folder.path):
        kinds = [module.kind for module in model_folder.modules(folder.path)]
        if kinds != ["Transformer"]:
            raise UserError(
                f"{folder.path / model_folder.MODULES}: it has {', '.join(kinds)[:80]}, and a reranker is a "
                "Transformer alone"
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


def separators(folder: BertFolder) -> int:
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
        return 2 if folder.kind in _PAIRS_OF_TWO_SEPARATORS else 1


def load_cross_encoder(
    folder: BertFolder, config: TransformerConfig, token_ids: Sequence[int] | None = None
) -> CrossEncoder:
    """The cross-encoder of such a folder. Its scores are those of `sentence_transformers.CrossEncoder.predict`.

    Args:
      config: of the folder's sizes, and with as many tokens as its vocabulary has.
      token_ids: as `BertFolder.encoder` has them.

    Raises:
      UserError: as `read_cross_encoder`, or as `check_cross_encoder`.
    """
    classes, sigmoid = check_cross_encoder(folder)
    make = functools.partial(CrossEncoder, config, classes, sigmoid=sigmoid)
    params = read_cross_encoder(folder, nnx.eval_shape(lambda: make(rngs=Rngs(0))), token_ids)
    model = make(rngs=Rngs(0))
    state = nnx.state(model, nnx.Param)
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, params))
    nnx.update(model, state)
    return model


def read_cross_encoder(
    folder: BertFolder, like: CrossEncoder, token_ids: Sequence[int] | None = None
) -> dict[str, Any]:
    """The parameters of a cross-encoder from such a folder, of anybody's making.

    Args:
      like: a model of as many classes and of the same sizes, or its shapes; of two classes where the folder has one.
      token_ids: as `BertFolder.encoder` has them.

    Raises:
      UserError: as `check_cross_encoder`, or it has another number of classes, or its weights do not fit.
    """
    check_cross_encoder(folder)
    if folder.classes not in (1, like.classes):
        raise UserError(f"{folder.path}: its classifier has {folder.classes} classes, and {like.classes} are needed")
    shapes = nnx.to_pure_dict(nnx.state(like, nnx.Param))
    head = folder.classifier({name: shapes[name] for name in ("pooler", "classifier")})
    assert head is not None, "it has a pooler"
    return {"encoder": folder.encoder(shapes["encoder"], token_ids)} | head


def settings(folder: BertFolder) -> list[Path]:
    """The files, beside those of the weights, that tell what becomes of the logit."""
    return [path] if (path := folder.path / SETTINGS).is_file() else []


def _activation(folder: BertFolder) -> tuple[str, Path]:
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
