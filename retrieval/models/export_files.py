"""Towers as folders that Hugging Face's `transformers` and `sentence-transformers` load.

    config.json, model.safetensors    the encoder, as its family has it, any pooler of zeros: `AutoModel`
    modules.json                      what sentence-transformers does one after the other:
    sentence_bert_config.json           the encoder, of at most so many tokens
    1_Pooling/                          one vector of those of the tokens, such as [CLS]'s, or their mean
    2_Dense/                            the projection, where there is one
    3_LayerNorm/                        a LayerNorm of the embedding, where there is one; or whatever layers there are
    4_Normalize/                        length 1, where the model has it

The tokenizer's files are not written here. Two towers lie in a folder each. Above them is the router, without a copy of
either: it sends queries through one and documents through the other. One tower for both has a length of its own for
queries (`query_length`). sentence-transformers knows it from version 6 on, and loads the rest from 5.7 on.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from flax import nnx

from retrieval.common import files
from retrieval.common.runtime.model_folder import DOCUMENT, MODULES, QUERY
from retrieval.models import encoder_folder, encoder_tensors, tensor_files
from retrieval.models.encoder_tensors import TensorNames
from retrieval.models.module_folder import ACTIVATIONS, MODEL, POOLINGS, SETTINGS, TITLES, TRUNCATED
from retrieval.models.tower_head import DENSE, KINDS, LAYER_NORM, NORMALIZE, TENSORS, Layer
from retrieval.models.transformer import Transformer
from retrieval.models.two_tower import Tower

# The older names of modules, which Text Embeddings Inference knows alone; sentence-transformers 6 maps them, and warns.
_PACKAGE = "sentence_transformers.models"
ROUTER = "router_config.json"
WITH_POOLER = ("bert", "mpnet", "roberta")


@dataclasses.dataclass(frozen=True)
class Use:
    """How towers are used, both alike.

    Attributes:
      normalize: whether embeddings are given length 1.
      truncate_dim: how many dimensions of them are kept; 0 for all.
      prompts: what stands before texts, by name: before queries and before documents, where there is something.
      include_prompt: whether the pooling takes the tokens of these.
      titles: how the title of a document was read, `data.titles`; our own loader looks for it.
    """

    normalize: bool
    truncate_dim: int = 0
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    include_prompt: bool = True
    titles: str = ""

    def settings(self, default_prompt: str) -> dict[str, Any]:
        """What `config_sentence_transformers.json` says.

        The scores of a search are inner products, of normalised embeddings too. Of truncated ones the length is no
        longer 1 there, but their cosines are our scores.
        """
        return {
            "model_type": MODEL,
            "similarity_fn_name": "cosine" if self.normalize and self.truncate_dim else "dot",
            "prompts": dict(self.prompts),
            "default_prompt_name": default_prompt if default_prompt in self.prompts else None,
            **({TRUNCATED: self.truncate_dim} if self.truncate_dim else {}),
            **({TITLES: self.titles} if self.titles else {}),
        }


def write_tower(
    folder: Path,
    tower: Tower,
    use: Use,
    *,
    length: int,
    query_length: int | None = None,
    default_prompt: str = DOCUMENT,
    pad_id: int = -1,
) -> None:
    """Writes a tower, but for its tokenizer, into a folder that is there.

    Args:
      default_prompt: that of a text of which nobody says what it is.
      length: tokens that a text is cut to.
      pad_id: the token of padding, -1 where there is none.
      query_length: tokens that a query is cut to, where that is another number.
    """
    hidden_size = tower.encoder.config.hidden_size
    write_encoder(folder, tower.encoder, pad_id)
    # Older versions refuse a `query_length`, so it is there only where it is needed.
    of_queries = {} if query_length in (None, length) else {"query_length": query_length}
    lengths = {"max_seq_length": length, **of_queries, "do_lower_case": False}
    files.write_json(folder / "sentence_bert_config.json", lengths)
    (folder / "1_Pooling").mkdir()
    files.write_json(folder / "1_Pooling" / "config.json", _pooling(tower.pooling, hidden_size, use.include_prompt))
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    for layer, name in [*tower.layers(), *([(Layer(NORMALIZE), "")] if use.normalize else [])]:
        modules.append((f"{len(modules)}_{KINDS[layer.kind]}", KINDS[layer.kind]))
        write_layer(folder / modules[-1][0], layer, getattr(tower, name) if name else None)
    write_modules(folder, [(place, f"{_PACKAGE}.{kind}") for place, kind in modules])
    files.write_json(folder / SETTINGS, use.settings(default_prompt))


def write_encoder(folder: Path, encoder: Transformer, pad_id: int = -1) -> None:
    """Writes an encoder's config and weights into a folder that is there.

    Args:
      pad_id: the token of padding, -1 where there is none.
    """
    names = TensorNames.of(encoder.config.architecture)
    tensors = encoder_tensors.to_tensors(_parameters(encoder), names)
    if names.family in WITH_POOLER:  # of zeros: where it is missing, one is drawn at random, with a warning
        zeros = np.zeros((encoder.config.hidden_size,) * 2, np.float32)
        tensors |= {"pooler.dense.weight": zeros, "pooler.dense.bias": zeros[0]}
    write_tensors(folder, tensors)
    config = encoder_folder.written_config(encoder.config)
    if config.get("pad_token_id") is None:  # in a family whose vocabularies have it in many places
        config["pad_token_id"] = pad_id if pad_id >= 0 else None
    files.write_json(folder / "config.json", config)


def write_router(folder: Path, use: Use, default_prompt: str) -> None:
    """Writes what makes one model of the towers in the folders `query` and `document` below `folder`."""
    files.write_json(folder / ROUTER, router(folder))
    write_modules(folder, [("", f"{_PACKAGE}.Router")])
    files.write_json(folder / SETTINGS, use.settings(default_prompt))


def router(folder: Path) -> dict[str, Any]:
    """The config of the router above two towers' folders, by what these have."""
    modules = {route: files.read_json(folder / route / MODULES) for route in (QUERY, DOCUMENT)}
    return routes({side: [(str(PurePosixPath(side, x["path"])), x["type"]) for x in modules[side]] for side in modules})


def routes(sides: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, Any]:
    """The config of a router, of the folder and the type of each module of its routes."""
    return {
        "types": {path: kind for modules in sides.values() for path, kind in modules},
        "structure": {route: [path for path, _ in modules] for route, modules in sides.items()},
        "parameters": {"default_route": DOCUMENT, "allow_empty_key": True},
    }


def _pooling(ours: str, hidden_size: int, include_prompt: bool) -> dict[str, Any]:
    """The way of pooling by its name, and by the older switches, without which Text Embeddings Inference stops."""
    return {
        "embedding_dimension": hidden_size,
        "word_embedding_dimension": hidden_size,
        "pooling_mode": next(name for name, (each, _) in POOLINGS.items() if each == ours),
        **{switch: each == ours for each, switch in POOLINGS.values()},
        "include_prompt": include_prompt,
    }


def write_layer(folder: Path, layer: Layer, module: Any, **more: Any) -> None:
    """Writes a layer behind the pooling; `more` of its config is what other packages ask for."""
    folder.mkdir(exist_ok=True)
    config = {}
    if layer.kind == DENSE:
        activation = next(name for name, ours in ACTIVATIONS.items() if ours == layer.activation)
        sizes = dict(zip(("in_features", "out_features"), module.kernel.shape))
        config = {**sizes, "bias": layer.bias, "activation_function": activation}
    elif layer.kind == LAYER_NORM:
        config = {"dimension": module.num_features}
    files.write_json(folder / "config.json", config | more)
    params = _parameters(module) if module else {}
    tensors = {TENSORS[layer.kind][name]: np.asarray(values, np.float32).T for name, values in params.items()}
    if tensors:
        write_tensors(folder, {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})


def write_tensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes `model.safetensors` into a folder that is there."""
    tensor_files.write(folder / "model.safetensors", tensors)


def write_modules(folder: Path, modules: Sequence[tuple[str, str]]) -> None:
    """Writes `modules.json`, of the folder and the type of each module."""
    rows = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)]
    files.write_json(folder / MODULES, rows)


def _parameters(module: nnx.Module) -> dict[str, Any]:
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))
