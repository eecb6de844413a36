"""A folder of sentence-transformers: what its modules make of a text, read in full or refused by name.

The modules are applied in the order of `modules.json`: a Transformer, a Pooling, and any number of Dense, LayerNorm,
Normalize and Dropout, which does nothing outside of training. Every setting of each is one that is understood.
"""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.common.runtime.model_folder import MODULES, Module
from retrieval.models import known_keys, tensor_files, tower_head
from retrieval.models.architecture import Architecture
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.known_keys import ANY, shown
from retrieval.models.tower_head import DENSE, LAYER_NORM, NORMALIZE, TENSORS, Layer

_log = logging.getLogger(__name__)

SETTINGS = "config_sentence_transformers.json"
TITLES = "titles"  # ours, which the libraries pass over
TRUNCATED = "truncate_dim"
MODEL = "SentenceTransformer"
DOT, COSINE = ("dot", "dot_product"), ("cosine",)
# The torch classes of activations.
_CLASSES = ("linear.Identity", *(f"activation.{name}" for name in ("Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")))
ACTIVATIONS = {f"torch.nn.modules.{name}": name.rpartition(".")[2].lower() for name in _CLASSES}
# Its ways of pooling.
POOLINGS = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
}

_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
_LENGTHS = [f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "xlm-roberta")]
_SWITCHES = (True, False)
_CONFIG = "config.json"
_MOST = 2**31 - 1
_LEAST = 3  # tokens of a text: [CLS], [SEP] and one more
# The inputs and outputs that modules have when each takes what the one before made.
_CHAINED = {f"module_{end}_name": ("sentence_embedding",) for end in ("input", "output")}
# Older folders have a switch for each way of pooling, newer ones the name of one.
POOLING_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POOLING = {
    **dict.fromkeys(("word_embedding_dimension", "embedding_dimension", "pooling_mode"), ANY),
    **dict.fromkeys(("include_prompt", *POOLING_SWITCHES), _SWITCHES),
}
_DENSE = {
    **dict.fromkeys(("in_features", "out_features"), ANY),
    "bias": _SWITCHES,
    "activation_function": tuple(ACTIVATIONS),
    "use_residual": (False,),
    **_CHAINED,
    "module_output_name": ("sentence_embedding", "scores"),  # the latter of a cross-encoder's last
}
# How a Transformer is loaded where that changes no embedding.
TRANSFORMER_KEYS = {
    **dict.fromkeys(("max_seq_length", "query_length", "document_length", "modality_config"), ANY),
    **dict.fromkeys(("do_lower_case", "unpad_inputs"), _SWITCHES),  # the former is the tokenizer's
    "transformer_task": ("feature-extraction",),  # others are a reranker's, or a masked language model's
    "module_output_name": ("token_embeddings",),
    **dict.fromkeys(("model_args", "model_kwargs"), ({}, {"add_pooling_layer": False})),
    **dict.fromkeys("processing_kwargs tokenizer_args processor_kwargs config_args config_kwargs".split(), ({},)),
}
SETTINGS_KEYS = {
    **dict.fromkeys(("__version__", "prompts", "default_prompt_name", TRUNCATED, TITLES), ANY),
    "model_type": (MODEL,),
    "similarity_fn_name": (*COSINE, *DOT),
}


@dataclasses.dataclass(frozen=True)
class ModuleFolder:
    """One tower's folder.

    Attributes:
      pooling: one of `pooling.POOLINGS`.
      include_prompt: whether the pooling takes the tokens of a prompt.
      layers: what follows the pooling, but for a last normalisation; in `folders` those of their weights.
      normalize: whether the last module gives embeddings length 1.
      length, query_length: the tokens that documents and queries are cut to.
    """

    path: Path
    bert: EncoderFolder
    pooling: str
    include_prompt: bool
    layers: tuple[Layer, ...]
    folders: tuple[Path, ...]
    normalize: bool
    length: int
    query_length: int

    @classmethod
    def open(cls, path: Path) -> "ModuleFolder":
        """Looks at all settings of a folder, and at the shapes of its weights.

        Raises:
          UserError: a file is missing or damaged, a module or one of its settings is not understood, or sizes differ.
        """
        model_folder.check_sums(path)
        if not model_folder.has_modules(path):
            return cls._of_encoder(path)
        modules = model_folder.modules(path)
        kinds = [module.kind for module in modules]
        if kinds[0] == "StaticEmbedding":
            way = "model2vec and sentence-transformers load it"
            raise UserError(f"{path}: a vector for each token, and no encoder; {way}")
        if unknown := [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Dropout", *_LAYERS)]:
            raise UserError(f"{path / MODULES}: it has a module {unknown[0][:80]}, which our towers do not have")
        if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & set(kinds[2:]):
            raise UserError(f"{path / MODULES}: not one Transformer with one Pooling behind it, as our towers are")
        bert = EncoderFolder.open(path)
        size = bert.sizes["hidden_size"]
        pooling, include_prompt = _pooling(modules[1].folder / _CONFIG, size)
        behind = list(_layers(modules[2:], size))
        if normalize := bool(behind) and behind[-1][0] == Layer(NORMALIZE):
            behind.pop()
        layers, folders = tuple(layer for layer, _ in behind), tuple(folder for _, folder in behind)
        query, document = lengths(bert)
        return cls(path, bert, pooling, include_prompt, layers, folders, normalize, document, query)

    @classmethod
    def _of_encoder(cls, path: Path) -> "ModuleFolder":
        """A folder without modules, pooled as sentence-transformers does: a decoder's last token, else the mean."""
        bert = EncoderFolder.open(path)
        if bert.classes:
            raise UserError(f"{path}: it has a classifier, and makes no embeddings; rerankers are config.rerank.model")
        pooling = "last" if bert.sizes.get("architecture", Architecture()).causal else "mean"
        _log.info("%s: no %s: pooled by %s, as a %s usually is", path, MODULES, pooling, bert.family)
        query, document = lengths(bert)
        return cls(path, bert, pooling, True, (), (), False, document, query)

    def tower(self, like: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a tower: of the encoder, and of the layers by the names of `tower_head.names`.

        Args:
          like: those of a tower, or their shapes.

        Raises:
          UserError: a file is damaged, or a tensor is missing, left over or of another shape.
        """
        named = zip(tower_head.names(self.layers), self.layers, self.folders)
        layers = {name: _weights(folder, layer.kind) for name, layer, folder in named if name}
        return {"encoder": self.bert.encoder(like["encoder"]), **layers}


def settings(folder: Path, known: Mapping[str, Any] = SETTINGS_KEYS) -> dict[str, Any]:
    """What a folder says of prompts, titles and the comparison of embeddings, all of which is understood."""
    record = known_keys.read(folder / SETTINGS, known, optional=True)
    prompts = record.setdefault("prompts", {})
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise UserError(f"{folder / SETTINGS}: prompts is {shown(prompts)}, and a text for each name is needed")
    record["prompts"] = prompts = {name: text or "" for name, text in prompts.items()}
    if TRUNCATED in record:
        known_keys.whole(folder / SETTINGS, record, TRUNCATED, _MOST)
    default = record.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise UserError(f"{folder / SETTINGS}: default_prompt_name is {shown(default)}, which is none of its prompts")
    return record


def _pooling(path: Path, size: int) -> tuple[str, bool]:
    """How a text's tokens become a vector, and whether its prompt's are among them."""
    record = known_keys.read(path, _POOLING)
    for key in ("word_embedding_dimension", "embedding_dimension"):
        _check_size(path, record, key, size)
    switched = [way for key, way in POOLING_SWITCHES.items() if record.get(key)] or ["mean"]
    ways = record.get("pooling_mode", switched)
    way = " and ".join(map(str, ways)) if isinstance(ways, list) else str(ways)
    if way not in POOLINGS:
        raise UserError(f"{path}: it pools by {way[:80] or 'nothing'}; one of {', '.join(POOLINGS)} is needed")
    return POOLINGS[way], record.get("include_prompt", True)


def _layers(modules: Sequence[Module], size: int) -> Iterator[tuple[Layer, Path]]:
    """The layers behind the pooling, each with its folder."""
    for kind, folder in modules:
        if kind == "Dropout":
            known_keys.read(folder / _CONFIG, {"dropout": ANY}, optional=True)
            continue
        layer, path = Layer(_LAYERS[kind]), folder / _CONFIG
        record = known_keys.read(path, _KNOWN[kind], optional=kind == "Normalize")
        for key in ("in_features", "dimension"):
            _check_size(path, record, key, size)
        expected = dict.fromkeys(TENSORS[layer.kind].values(), (size,))
        if kind == "Dense":
            activation = record.get("activation_function", "torch.nn.modules.activation.Tanh")  # the library's default
            out = known_keys.whole(path, record, "out_features", _MOST)
            layer = Layer(DENSE, out, ACTIVATIONS[activation], record.get("bias", True))
            expected = {"linear.weight": (out, size), **({"linear.bias": (out,)} if layer.bias else {})}
        shapes = {name: x.shape for name, x in tensor_files.read(folder, values=False).items()} if expected else {}
        if shapes != expected:
            problem = f"its tensors are {_listed(shapes)}, and by {path} they should be {_listed(expected)}"
            raise UserError(f"{tensor_files.find(folder)[0]}: {problem}: copy both again")
        size = layer.size or size
        yield layer, folder


_LAYERS = {"Dense": DENSE, "LayerNorm": LAYER_NORM, "Normalize": NORMALIZE}
_KNOWN = {"Dense": _DENSE, "LayerNorm": {"dimension": ANY}, "Normalize": _CHAINED}


def _check_size(path: Path, record: Mapping[str, Any], key: str, size: int) -> None:
    if key in record and (type(record[key]) is not int or record[key] != size):
        raise UserError(f"{path}: {key} is {shown(record[key])}, and what comes before it has {size} dimensions")


def _weights(folder: Path, kind: str) -> dict[str, Any]:
    """The parameters of a layer of a kind, whose shapes have been compared with its config."""
    ours, tensors = {theirs: name for name, theirs in TENSORS[kind].items()}, tensor_files.read(folder)
    if broken := [name for name, tensor in tensors.items() if not np.isfinite(tensor).all()]:
        raise UserError(f"{folder}: its {broken[0]} has values that are not finite; copy it again")
    return {ours[name]: tensor.T.astype(np.float32) for name, tensor in tensors.items()}


def lengths(
    bert: EncoderFolder, known: Mapping[str, Any] = TRANSFORMER_KEYS, of_text: Mapping[str, str] = _TEXT
) -> tuple[int, int]:
    """The tokens of queries and of documents: no more than the encoder has positions for.

    Args:
      known: the settings of its Transformer that are understood.
      of_text: what a text's `modality_config` has to be, where there is one.
    """
    paths = [bert.place / name for name in _LENGTHS]
    path = next((path for path in paths if path.is_file()), paths[0])
    record, most = known_keys.read(path, known, optional=True), bert.sizes["max_length"]
    modalities = record.get("modality_config", {"text": of_text})
    # Images, or messages of a chat, are not given to our towers.
    theirs = modalities.get("text") if isinstance(modalities, dict) else modalities
    if theirs != of_text:
        raise UserError(f"{path}: modality_config of a text is {shown(theirs)}; only {of_text} is understood here")
    longest = most
    if "max_seq_length" in record:
        longest = known_keys.whole(path, record, "max_seq_length", least=_LEAST)
    elif (tokenizer := bert.place / "tokenizer_config.json").is_file():  # newer versions leave it to the tokenizer
        theirs = files.read_json(tokenizer)
        theirs = theirs if isinstance(theirs, dict) else {}
        longest = known_keys.whole(tokenizer, theirs, "model_max_length", default=most, least=_LEAST)
    query, document = (
        min(most, known_keys.whole(path, record, key, default=longest, least=_LEAST))
        for key in ("query_length", "document_length")
    )
    return query, document


def _listed(shapes: Mapping[str, Sequence[int]]) -> str:
    texts = [f"{name} {list(shape)}" for name, shape in sorted(shapes.items())]
    return ", ".join(texts[:3]) + (" ..." if texts[3:] else "")
