"""Towers as folders that Hugging Face's `transformers` and `sentence-transformers` load.

    config.json, model.safetensors    a BertModel, whose pooler is of zeros: `AutoModel`
    modules.json                      what sentence-transformers does one after the other:
    sentence_bert_config.json           the BertModel, of at most so many tokens
    1_Pooling/                          the vector of [CLS], or the mean
    2_Dense/                            the projection, where there is one
    3_LayerNorm/                        a LayerNorm of the embedding, where there is one; or whatever layers there are
    4_Normalize/                        length 1, where the model has it

The tokenizer's files are not written here. Two towers lie in a folder each. Above them is the router, without a copy of
either: it sends queries through one and documents through the other. One tower for both has a length of its own for
queries (`query_length`). sentence-transformers knows it from version 6 on, and loads the rest from 5.7 on.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from flax import nnx
from safetensors.numpy import save

from retrieval import files
from retrieval.models import encoder_folder, encoder_tensors
from retrieval.models.encoder_tensors import TensorNames
from retrieval.models.layer_norm import LayerNorm
from retrieval.models.module_folder import ACTIVATIONS, MODEL, SETTINGS, TITLES
from retrieval.models.tower_head import DENSE, LAYER_NORM, NORMALIZE, Layer
from retrieval.models.two_tower import Tower
from retrieval.runtime.model_folder import DOCUMENT, MODULES, QUERY

# The scores of a search are inner products, of normalised embeddings too.
_MODEL = {"model_type": MODEL, "similarity_fn_name": "dot"}
_MODULES = "sentence_transformers.sentence_transformer.modules"
ROUTER = "router_config.json"
_KINDS = {DENSE: "Dense", LAYER_NORM: "LayerNorm", NORMALIZE: "Normalize"}


def write_tower(
    folder: Path,
    tower: Tower,
    *,
    normalize: bool,
    length: int,
    query_length: int | None = None,
    prompts: Mapping[str, str] = {},
    default_prompt: str = DOCUMENT,
    titles: str = "",
) -> None:
    """Writes a tower, but for its tokenizer, into a folder that is there.

    Args:
      prompts: what stands before queries and before documents, where there is something.
      default_prompt: that of a text of which nobody says what it is.
      titles: how the title of a document was read, `data.titles`; our own loader looks for it.
      normalize: whether embeddings are given length 1.
      length: tokens that a text is cut to.
      query_length: tokens that a query is cut to, where that is another number.
    """
    hidden_size = tower.encoder.config.hidden_size
    names = TensorNames.of(tower.encoder.config.architecture)
    tensors = encoder_tensors.to_tensors(_parameters(tower.encoder), names)
    write_tensors(folder, tensors | (_no_pooler(hidden_size) if names.family == "bert" else {}))
    files.write_json(folder / "config.json", encoder_folder.written_config(tower.encoder.config))
    files.write_json(folder / "sentence_bert_config.json", _lengths(length, query_length) | {"do_lower_case": False})
    pooling = {"embedding_dimension": hidden_size, "pooling_mode": tower.pooling, "include_prompt": True}
    (folder / "1_Pooling").mkdir()
    files.write_json(folder / "1_Pooling" / "config.json", pooling)
    kinds = ["Transformer", "Pooling"]
    for layer, name in [*tower.layers(), *([(Layer(NORMALIZE), "")] if normalize else [])]:
        kinds.append(_KINDS[layer.kind])
        _write_layer(folder / _path(kinds), layer, getattr(tower, name) if name else None)
    _write_modules(folder, kinds, prompts, default_prompt, titles)


def write_router(folder: Path, prompts: Mapping[str, str] = {}, titles: str = "") -> None:
    """Writes what makes one model of the towers in the folders `query` and `document` below `folder`.

    Args:
      prompts, titles: as `write_tower` has them.
    """
    files.write_json(folder / ROUTER, router(folder))
    _write_modules(folder, ["Router"], prompts, DOCUMENT, titles)


def router(folder: Path) -> dict[str, Any]:
    """The config of the router above two towers' folders, by what these have."""
    routes = {route: _modules_of(folder / route, route) for route in (QUERY, DOCUMENT)}
    return {
        "types": {path: kind for modules in routes.values() for path, kind in modules},
        "structure": {route: [path for path, _ in modules] for route, modules in routes.items()},
        "parameters": {"default_route": DOCUMENT, "allow_empty_key": True},
    }


def _lengths(length: int, query_length: int | None) -> dict[str, int]:
    """What texts are cut to. Older versions refuse a `query_length`, so it is there only where it is needed."""
    of_queries = {} if query_length in (None, length) else {"query_length": query_length}
    return {"max_seq_length": length, **of_queries}


def _no_pooler(hidden_size: int) -> dict[str, np.ndarray]:
    """BERT's pooler, of zeros: where it is missing, one is drawn at random, with a warning at every loading."""
    shape = (hidden_size, hidden_size)
    return {"pooler.dense.weight": np.zeros(shape, np.float32), "pooler.dense.bias": np.zeros(hidden_size, np.float32)}


def _write_layer(folder: Path, layer: Layer, module: Any) -> None:
    folder.mkdir()
    if layer.kind == NORMALIZE:
        files.write_json(folder / "config.json", {})
    elif layer.kind == LAYER_NORM:
        _write_norm(folder, module)
    else:
        _write_dense(folder, layer, module)


def _write_dense(folder: Path, layer: Layer, projection: nnx.Linear) -> None:
    size_in, size_out = projection.kernel.shape
    activation = next(name for name, ours in ACTIVATIONS.items() if ours == layer.activation)
    config = {"in_features": size_in, "out_features": size_out, "bias": layer.bias, "activation_function": activation}
    files.write_json(folder / "config.json", config)
    bias = {"linear.bias": _float32(projection.bias)} if layer.bias else {}
    write_tensors(folder, {"linear.weight": np.ascontiguousarray(_float32(projection.kernel).T), **bias})


def _write_norm(folder: Path, norm: LayerNorm) -> None:
    files.write_json(folder / "config.json", {"dimension": norm.num_features})
    write_tensors(folder, {"norm.weight": _float32(norm.scale), "norm.bias": _float32(norm.bias)})


def _float32(parameter: nnx.Param | None) -> np.ndarray:
    assert parameter is not None, "our layers have all of theirs"
    return np.asarray(parameter[...], np.float32)


def write_tensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes `model.safetensors` into a folder that is there."""
    # Not its `save_file`, whose files nobody else may read.
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))


def _write_modules(
    folder: Path, kinds: Sequence[str], prompts: Mapping[str, str], default_prompt: str, titles: str
) -> None:
    """`modules.json`, and the prompts: the first module lies in the folder itself, others in a folder of their own."""
    modules = [
        {"idx": i, "name": str(i), "path": _path(kinds[: i + 1]) if i else "", "type": f"{_MODULES}.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    files.write_json(folder / MODULES, modules)
    default = default_prompt if default_prompt in prompts else None
    own = {TITLES: titles} if titles else {}
    files.write_json(folder / SETTINGS, {**_MODEL, "prompts": dict(prompts), "default_prompt_name": default, **own})


def _modules_of(folder: Path, route: str) -> list[tuple[str, str]]:
    """Paths, from the router's folder on, and types of a tower's modules."""
    modules = files.read_json(folder / MODULES)
    return [(str(PurePosixPath(route, module["path"])), module["type"]) for module in modules]


def _path(kinds: Sequence[str]) -> str:
    """The folder of the last of some modules: its place and its type."""
    return f"{len(kinds) - 1}_{kinds[-1]}"


def _parameters(module: nnx.Module) -> dict[str, Any]:
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))
