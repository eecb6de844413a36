"""The weights of an encoder's family as our parameters, and back: which tensor is which parameter.

A tensor has the name and the shape that Hugging Face's class gives it. Its linear layers are [out, in], ours are
[in, out]. Each of its layers has tensors of its own. Ours are one array with a leading axis. A tensor that holds
several of our matrices has the rows of one after the other.
"""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from retrieval.common.errors import UserError
from retrieval.models.architecture import Architecture
from retrieval.models.encoders.family import FAMILIES

_LEAVES = {"embedding": "weight", "kernel": "weight", "scale": "weight", "bias": "bias"}
_PART = "#"  # between the name of a module or a tensor and the number of its part
_FIRST_NORM = "layers/attention_norm/scale"
_SHOWN = 3  # faults that an error lists


@dataclasses.dataclass(frozen=True)
class TensorNames:
    """The names of a family's tensors.

    Attributes:
      family: a name in `FAMILIES`.
    """

    family: str
    architecture: Architecture

    @classmethod
    def of(cls, architecture: Architecture) -> "TensorNames":
        """Those of the family that an architecture is named after."""
        return cls(architecture.family, architecture)

    def module(self, path: str, number: int = 0) -> str:
        """The family's module of one of ours, 'NAME#PART' where it is a part of one."""
        modules = FAMILIES[self.family].modules_of(self.architecture)
        if path not in modules:
            raise UserError(f"encoders of the family {self.family} have no {path or 'output layer'}")
        return modules[path].format(number)

    def of_parameter(self, path: str, layers: int) -> list[str]:
        """The tensors that a parameter is made of: one a layer where it has layers, '' where the family lacks one."""
        module, _, kind = path.rpartition("/")
        names = [self.module(module, number).partition(_PART) for number in range(layers if _is_stacked(path) else 1)]
        tensors = [f"{name}.{_LEAVES[kind]}{sign}{part}" for name, sign, part in names]
        return ["", *tensors[1:]] if path == _FIRST_NORM and not self.architecture.first_norm else tensors

    def split(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tensors, of those that hold several of ours the parts; one that does not fall into these stays whole."""
        modules = FAMILIES[self.family].modules_of(self.architecture).values()
        counts = Counter(name for name, sign, _ in (module.partition(_PART) for module in modules) if sign)
        result = {}
        for name, tensor in tensors.items():
            count = counts[re.sub(r"\.\d+\.", ".{}.", name.rpartition(".")[0], count=1)]
            if count and tensor.ndim and len(tensor) % count == 0:
                result |= {f"{name}{_PART}{n}": part for n, part in enumerate(np.split(tensor, count))}
            else:
                result[name] = tensor
        return result


def to_tensors(params: Mapping[str, Any], names: TensorNames) -> dict[str, np.ndarray]:
    """The parameters of a Transformer, or of what is put on one, as the family has them; float32.

    Args:
      params: nested dicts of arrays, as `nnx.to_pure_dict` gives them.
    """
    tensors = defaultdict(dict)
    for path, leaf in traverse_util.flatten_dict(params, sep="/").items():
        leaf = np.asarray(leaf, np.float32)
        if path == "position_embedding/embedding":
            leaf = np.pad(leaf, [(FAMILIES[names.family].skipped_positions, 0), (0, 0)])
        stacked = leaf if _is_stacked(path) else leaf[None]
        for name, tensor in zip(names.of_parameter(path, len(stacked)), stacked):
            if name:
                whole, _, part = name.partition(_PART)
                tensors[whole][part] = tensor.T if path.endswith("/kernel") else tensor
    return {name: np.ascontiguousarray(np.concatenate([x[n] for n in sorted(x)])) for name, x in tensors.items()}


def check_shapes(tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], names: TensorNames, source: str) -> None:
    """Checks that there is a tensor of the right shape for every parameter, and no other, without their values.

    Args are those of `to_parameters`.

    Raises:
      UserError: a tensor is missing, left over or of another shape; the message lists which.
    """
    faults, left = [], names.split(tensors)
    for _, parts, shape in _needed(like, names):
        for name in filter(None, parts):
            tensor = left.pop(name, None)
            if tensor is None:
                faults.append(f"{name} is missing")
            elif _first(name, tensor, shape, names).shape != shape:
                faults.append(f"{name} is {list(tensor.shape)}, {list(shape)} is needed")
    _raise(faults + [f"{name} {list(left[name].shape)} is left over" for name in sorted(left)], source)


def to_parameters(
    tensors: Mapping[str, np.ndarray], like: Mapping[str, Any], names: TensorNames, source: str
) -> dict[str, Any]:
    """A family's tensors as the parameters of a Transformer, or of what is put on one: nested dicts, float32.

    Where the model has fewer positions, the first of the folder's are taken.

    Args:
      tensors: under the names that `Family.name` gives them.
      like: the parameters that are needed, or their shapes.
      source: where the tensors are from, for errors, as those of `check_shapes`; values have to be finite, too.
    """
    check_shapes(tensors, like, names, source)
    params, faults, tensors = {}, [], names.split(tensors)
    for path, needed, shape in _needed(like, names):
        parts = [_first(name, tensors[name], shape, names) if name else np.ones(shape) for name in needed]
        parts = [part.astype(np.float32) for part in parts]
        broken = [name for name, part in zip(needed, parts) if not np.isfinite(part).all()]
        faults += [f"{name} has values that are not finite" for name in broken]
        parts = [part.T for part in parts] if path.endswith("/kernel") else parts
        params[path] = np.stack(parts) if _is_stacked(path) else np.array(parts[0])
    _raise(faults, source)
    return traverse_util.unflatten_dict(params, sep="/")


def _needed(like: Mapping[str, Any], names: TensorNames) -> Iterator[tuple[str, list[str], tuple[int, ...]]]:
    """Of each parameter its path, the tensors that it is made of, '' for one that there is not, and their shape."""
    flat: Any = traverse_util.flatten_dict(like, sep="/")
    for path, leaf in flat.items():
        shape = leaf.shape[1:] if _is_stacked(path) else leaf.shape
        parts = names.of_parameter(path, leaf.shape[0] if leaf.shape else 1)
        yield path, parts, tuple(shape[::-1] if path.endswith("/kernel") else shape)


def _first(name: str, tensor: np.ndarray, shape: tuple[int, ...], names: TensorNames) -> np.ndarray:
    """A tensor; of a table of positions as many as are needed, from that of a text's first token on."""
    start = FAMILIES[names.family].skipped_positions
    return tensor[start : start + shape[0]] if "position_embeddings" in name and tensor.ndim else tensor


def _raise(faults: list[str], source: str) -> None:
    faults = [fault.replace(_PART, " part ") for fault in faults]
    if faults:
        more = f"\n  and {len(faults) - _SHOWN} more" if faults[_SHOWN:] else ""
        raise UserError(f"{source}: its tensors do not fit the model\n  " + "\n  ".join(faults[:_SHOWN]) + more)


def _is_stacked(path: str) -> bool:
    """Whether a parameter has a leading axis, of layers."""
    return path.startswith("layers/")
