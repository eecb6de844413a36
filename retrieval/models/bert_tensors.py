"""BERT's weights as our parameters, and back: which tensor is which parameter.

A tensor has the name and the shape that Hugging Face's `BertModel` gives it. Its linear layers are [out, in], ours are
[in, out]. Each of its layers has tensors of its own. Ours are one array with a leading axis.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from retrieval.errors import UserError

# Modules of an encoder ({} is the number of a layer), of BERT's heads and of a cross-encoder.
_MODULES = {
    "token_embedding": "embeddings.word_embeddings",
    "position_embedding": "embeddings.position_embeddings",
    "type_embedding": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "layers/attention/query": "encoder.layer.{}.attention.self.query",
    "layers/attention/key": "encoder.layer.{}.attention.self.key",
    "layers/attention/value": "encoder.layer.{}.attention.self.value",
    "layers/attention/output": "encoder.layer.{}.attention.output.dense",
    "layers/attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "layers/mlp_in": "encoder.layer.{}.intermediate.dense",
    "layers/mlp_out": "encoder.layer.{}.output.dense",
    "layers/mlp_norm": "encoder.layer.{}.output.LayerNorm",
    "dense": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "": "cls.predictions",
    "pooler": "pooler.dense",
    "next_sentence": "cls.seq_relationship",
    "classifier": "classifier",
}
_LEAVES = {"embedding": "weight", "kernel": "weight", "scale": "weight", "bias": "bias"}

_SHOWN = 3  # faults that an error lists


def to_tensors(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The parameters of a Transformer, or of what is put on one, as BERT has them; float32.

    Args:
      params: nested dicts of arrays, as `nnx.to_pure_dict` gives them.
    """
    tensors = {}
    for path, leaf in traverse_util.flatten_dict(params, sep="/").items():
        leaf = np.asarray(leaf, np.float32)
        for name, part in zip(_names(path, leaf), leaf if _is_stacked(path) else [leaf]):
            tensors[name] = np.ascontiguousarray(part.T if _is_transposed(path) else part)
    return tensors


def check_shapes(tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], source: str) -> None:
    """Checks that there is a tensor of the right shape for every parameter, and no other, without their values.

    Args are those of `to_parameters`.

    Raises:
      UserError: as `to_parameters`.
    """
    faults, used = [], set()
    for _, names, shape in _needed(like):
        used.update(names)
        for name in names:
            _fitting(tensors, name, shape, faults)
    _raise(faults, tensors, used, source)


def to_parameters(tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], source: str) -> dict[str, Any]:
    """BERT's tensors as the parameters of a Transformer, or of what is put on one: nested dicts, float32.

    Where the model has fewer positions, the first of BERT's are taken.

    Args:
      like: the parameters that are needed, or their shapes.
      source: where the tensors are from, for errors.

    Raises:
      UserError: a tensor is missing, left over, of another shape or not finite; the message lists which.
    """
    params, faults, used = {}, [], set()
    for path, names, shape in _needed(like):
        used.update(names)
        parts = [_part(tensors, name, shape, faults) for name in names]
        parts = [part.T for part in parts] if _is_transposed(path) else parts
        params[path] = np.stack(parts) if _is_stacked(path) else np.array(parts[0])
    _raise(faults, tensors, used, source)
    return traverse_util.unflatten_dict(params, sep="/")


def _needed(like: Mapping[str, Any]) -> Iterator[tuple[str, list[str], tuple[int, ...]]]:
    """Of each parameter its path, the tensors that it is made of, and their shape."""
    leaves: Any = traverse_util.flatten_dict(like, sep="/")
    for path, leaf in leaves.items():
        shape = leaf.shape[1:] if _is_stacked(path) else leaf.shape
        yield path, _names(path, leaf), tuple(shape[::-1] if _is_transposed(path) else shape)


def _raise(faults: list[str], tensors: Mapping[str, np.ndarray], used: Collection[str], source: str) -> None:
    faults += [f"{name} {list(tensors[name].shape)} is left over" for name in sorted(tensors.keys() - set(used))]
    if faults:
        more = f"\n  and {len(faults) - _SHOWN} more" if faults[_SHOWN:] else ""
        raise UserError(f"{source}: its tensors do not fit the model\n  " + "\n  ".join(faults[:_SHOWN]) + more)


def _names(path: str, leaf: Any) -> list[str]:
    """The tensors that a parameter is made of: one for each layer where it has layers."""
    module, _, kind = path.rpartition("/")
    name = f"{_MODULES[module]}.{_LEAVES[kind]}"
    return [name.format(number) for number in range(leaf.shape[0])] if _is_stacked(path) else [name]


def _part(tensors: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], faults: list[str]) -> np.ndarray:
    """A tensor as float32. Where it does not fit, it is zero, and `faults` gets what is wrong."""
    tensor = _fitting(tensors, name, shape, faults)
    if tensor is None:
        return np.zeros(shape, np.float32)
    tensor = tensor.astype(np.float32)
    if not np.isfinite(tensor).all():
        faults.append(f"{name} has values that are not finite")
    return tensor


def _fitting(
    tensors: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], faults: list[str]
) -> np.ndarray | None:
    """A tensor of a shape; None where there is none, and `faults` gets what is wrong."""
    tensor = tensors.get(name)
    if tensor is None:
        faults.append(f"{name} is missing")
        return None
    if "position_embeddings" in name and tensor.ndim:
        tensor = tensor[: shape[0]]
    if tensor.dtype == object:
        faults.append(f"{name} is not of numbers")
        return None
    if tensor.shape != shape:
        faults.append(f"{name} is {list(tensors[name].shape)}, {list(shape)} is needed")
        return None
    return tensor


def _is_stacked(path: str) -> bool:
    """Whether a parameter has a leading axis, of layers."""
    return path.startswith("layers/")


def _is_transposed(path: str) -> bool:
    return path.endswith("/kernel")
