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

from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.common.runtime.model_folder import MODULES, Module
from retrieval.models import known_keys, tensor_files, tower_head
from retrieval.models.architecture import Architecture
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoders.family import CONFIG, MOST
from retrieval.models.known_keys import ANY, shown
from retrieval.models.tower_head import DENSE, NORMALIZE, TENSORS, Layer

_log = logging.getLogger(__name__)

SETTINGS = "config_sentence_transformers.json"
TITLES = "titles"  # ours, which the libraries pass over
TRUNCATED = "truncate_dim"
MODEL = "SentenceTransformer"
DOT, COSINE = ("dot", "dot_product"), ("cosine",)
# The torch classes of activations.
_CLASSES = ("linear.Identity", *(f"activation.{name}" for name in ("Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")))
ACTIVATIONS = {f"torch.nn.modules.{name}": name.rpartition(".")[2].lower() for name in _CLASSES}
# Its ways of pooling -> ours, where there is one, and the switch of each in older folders.
POOLINGS = {
    "cls": ("cls", "pooling_mode_cls_token"),
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "lasttoken": ("last", "pooling_mode_lasttoken"),
    "max": ("", "pooling_mode_max_tokens"),
    "mean_sqrt_len_tokens": ("", "pooling_mode_mean_sqrt_len_tokens"),
    "weightedmean": ("weighted_mean", "pooling_mode_weightedmean_tokens"),
}

_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
_LENGTHS = [f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "xlm-roberta")]
_SWITCHES = (True, False)
_LEAST = 3  # tokens of a text: [CLS], [SEP] and one more
# The inputs and outputs that modules have when each takes what the one before made.
_CHAINED = {f"module_{end}_name": ("sentence_embedding",) for end in ("input", "output")}
_POOLING = {
    "pooling_mode": ANY,
    **dict.fromkeys(("include_prompt", *(switch for _, switch in POOLINGS.values())), _SWITCHES),
}
_DENSE = {
    "out_features": ANY,
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
        modules = model_folder.modules(path) if model_folder.has_modules(path) else []
        kinds = [module.kind for module in modules]
        if modules and (kinds[:2] != ["Transformer", "Pooling"] or not {*kinds[2:]} <= {"Dropout", *_LAYERS}):
            needed = f"a Transformer, a Pooling and then any of Dropout, {', '.join(_LAYERS)} are needed"
            raise UserError(f"{path / MODULES}: its modules are {', '.join(kinds)[:200]}; {needed}")
        bert = EncoderFolder.open(path)
        query, document = lengths(bert)
        if not modules:  # pooled as sentence-transformers does: a decoder's last token, else the mean
            if bert.classes:
                problem = "it has a classifier, and makes no embeddings; rerankers are config.rerank.model"
                raise UserError(f"{path}: {problem}")
            pooling = "last" if bert.sizes.get("architecture", Architecture()).causal else "mean"
            _log.info("%s: no %s: pooled by %s, as a %s usually is", path, MODULES, pooling, bert.family)
            return cls(path, bert, pooling, True, (), (), False, document, query)
        size = bert.sizes["hidden_size"]
        pooling, include_prompt = _pooling(modules[1].folder / CONFIG, size)
        behind = list(_layers(modules[2:], size))
        if normalize := bool(behind) and behind[-1][0] == Layer(NORMALIZE):
            behind.pop()
        layers, folders = tuple(layer for layer, _ in behind), tuple(folder for _, folder in behind)
        return cls(path, bert, pooling, include_prompt, layers, folders, normalize, document, query)

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
        known_keys.whole(folder / SETTINGS, record, TRUNCATED, MOST)
    default = record.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise UserError(f"{folder / SETTINGS}: default_prompt_name is {shown(default)}, which is none of its prompts")
    return record


def _pooling(path: Path, size: int) -> tuple[str, bool]:
    """How a text's tokens become a vector, and whether its prompt's are among them."""
    sizes = dict.fromkeys(("word_embedding_dimension", "embedding_dimension"), (size,))
    record = known_keys.read(path, _POOLING | sizes)
    switched = [way for way, (_, switch) in POOLINGS.items() if record.get(switch)] or ["mean"]
    ways = record.get("pooling_mode", switched)
    way = " and ".join(map(str, ways)) if isinstance(ways, list) else str(ways)
    known = {theirs: ours for theirs, (ours, _) in POOLINGS.items() if ours}
    if way not in known:
        raise UserError(f"{path}: it pools by {way[:80] or 'nothing'}; one of {', '.join(known)} is needed")
    return known[way], record.get("include_prompt", True)


def _layers(modules: Sequence[Module], size: int) -> Iterator[tuple[Layer, Path]]:
    """The layers behind the pooling, each with its folder."""
    for kind, folder in modules:
        path = folder / CONFIG
        if kind == "Dropout":
            known_keys.read(path, {"dropout": ANY}, optional=True)
            continue
        layer, of_inputs = Layer(_LAYERS[kind]), {"in_features": (size,), "dimension": (size,)}
        record = known_keys.read(path, _KNOWN[kind] | of_inputs, optional=kind == "Normalize")
        expected = dict.fromkeys(TENSORS[layer.kind].values(), (size,))
        if kind == "Dense":
            activation = record.get("activation_function", "torch.nn.modules.activation.Tanh")  # the library's default
            out = known_keys.whole(path, record, "out_features", MOST)
            layer = Layer(DENSE, out, ACTIVATIONS[activation], record.get("bias", True))
            expected = {"linear.weight": (out, size), **({"linear.bias": (out,)} if layer.bias else {})}
        shapes = {name: x.shape for name, x in tensor_files.read(folder, values=False).items()} if expected else {}
        if shapes != expected:
            problem = f"its tensors are {_listed(shapes)}, and by {path} they should be {_listed(expected)}"
            raise UserError(f"{tensor_files.find(folder)[0]}: {problem}: copy both again")
        size = layer.size or size
        yield layer, folder


_LAYERS = {theirs: ours for ours, theirs in tower_head.KINDS.items()}
_KNOWN = {"Dense": _DENSE, "LayerNorm": {}, "Normalize": _CHAINED}


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
    if "max_seq_length" in record:
        longest = known_keys.whole(path, record, "max_seq_length", least=_LEAST)
    else:  # newer versions leave it to the tokenizer
        longest = known_keys.token_limit(bert.place, most, _LEAST)
    query, document = (
        min(most, known_keys.whole(path, record, key, default=longest, least=_LEAST))
        for key in ("query_length", "document_length")
    )
    return query, document


def _listed(shapes: Mapping[str, Sequence[int]]) -> str:
    texts = [f"{name} {list(shape)}" for name, shape in sorted(shapes.items())]
    return ", ".join(texts[:3]) + (" ..." if texts[3:] else "")
