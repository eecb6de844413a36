"""The tensors of a folder of weights, by name: safetensors, in one file or in parts that an index names."""

import re
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  NumPy, and safetensors with it, knows bfloat16 by it
import numpy as np
from safetensors import SafetensorError, safe_open

from retrieval import files
from retrieval.errors import UserError

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PART_NAME = re.compile(r"[\w-][\w.-]{0,99}\.safetensors", re.ASCII)


def find(folder: Path) -> list[Path]:
    """The files of a folder that have its weights.

    Raises:
      UserError: there is none, or one of its parts is missing.
    """
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if (folder / _INDEX).is_file():
        return [folder / _INDEX, *sorted({folder / name for name in _weight_map(folder / _INDEX).values()})]
    raise UserError(
        f"{folder}: no weights there; {_WHOLE} is needed, which model.save_pretrained(FOLDER) of transformers writes "
        "(a .bin is a pickle, and is not read)"
    )


def read(folder: Path, values: bool = True) -> dict[str, np.ndarray]:
    """All tensors by the names that the files have for them, with the types that they are saved in.

    Args:
      values: whether they are needed. Otherwise arrays of the same shapes, of zeros, take no memory: they are what the
        beginnings of the files say.

    Raises:
      UserError: a file is missing, damaged, or not what its name says.
    """
    first, *parts = find(folder)
    if not parts:
        return _read(first, values)
    names, tensors = _weight_map(first), {}
    for part in parts:
        for name, tensor in _read(part, values).items():
            if names.get(name) != part.name:
                raise UserError(f"{part}: its tensor {name} is not in {first.name}; copy both again")
            tensors[name] = tensor
    if missing := sorted(names.keys() - tensors.keys()):
        raise UserError(f"{folder / names[missing[0]]}: lacks {missing[0]}, which {first.name} names; copy it again")
    return tensors


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor -> file of an index."""
    value = files.read_json(path)
    names = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{path}: no weight_map from tensors to files; copy it again")
    for name in set(names.values()):
        if not _PART_NAME.fullmatch(name):
            raise UserError(f"{path}: {name[:80]!r} is no name of a file of weights; copy it again")
        if not (path.parent / name).is_file():
            raise UserError(f"{path.parent / name}: missing, though {path.name} names it; copy it again")
    return names


def _read(path: Path, values: bool) -> dict[str, np.ndarray]:
    try:
        with safe_open(path, "np") as tensors:
            names = tensors.keys()
            if not values:
                return {name: _shaped(tensors.get_slice(name).get_shape()) for name in names}
            return {name: tensors.get_tensor(name) for name in names}
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (SafetensorError, TypeError, ValueError) as error:  # TypeError: a type of numbers that NumPy lacks
        raise UserError(f"{path}: damaged, or no safetensors file ({error}); copy it again") from error


def _shaped(shape: Sequence[int]) -> np.ndarray:
    """A tensor without its values."""
    return np.broadcast_to(np.float32(0), tuple(shape))
