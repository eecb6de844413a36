"""The tensors of a folder of weights, by name: safetensors or PyTorch's files."""

import contextlib
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # NumPy, and safetensors with it, knows bfloat16 by it
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from retrieval.common import files, libraries
from retrieval.common.errors import UserError, first_line

_LARGEST = 1 << 22  # bytes of an index or a header: some 40,000 tensors
_PART_NAME = re.compile(r"[\w-][\w.-]{0,99}\.(safetensors|bin)", re.ASCII)
_HALVES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16}
# Before it, a file could get round `weights_only` (CVE-2025-32434, CVE-2026-24747).
_OLDEST_TORCH = (2, 10)
_CONVERT = "save it as model.safetensors, as model.save_pretrained(FOLDER) of transformers does"


def find(folder: Path) -> list[Path]:
    """The files of a folder that have its weights; of several formats the first of `_READERS`."""
    for name in _READERS:
        if (folder / name).is_file():
            return [folder / name, *_parts(folder / name)]
    raise UserError(f"{folder}: no weights there; one of {', '.join(_READERS)} is needed")


def read(folder: Path, values: bool = True) -> dict[str, np.ndarray]:
    """All tensors by the names that the files have for them.

    They have the types that they are saved in; bfloat16 of PyTorch's files becomes float32.

    Args:
      values: whether they are needed. Otherwise arrays of the same shapes, of zeros, take no memory: they are what the
        beginnings of the files say.

    Raises:
      UserError: a file is missing, damaged, or not what its name says.
    """
    first = find(folder)[0]
    return _READERS[first.name](first, values)


def write(path: Path, tensors: dict[str, np.ndarray], **metadata: str) -> None:
    """Writes a file of safetensors that PyTorch's libraries read."""
    # Not by its `save_file`, whose files nobody else may read.
    path.write_bytes(save(tensors, metadata={"format": "pt", **metadata}))


def metadata(path: Path) -> dict[str, str]:
    """What a file of safetensors says beside its tensors."""
    with _opened(path) as tensors:
        return tensors.metadata() or {}


def _shaped(shape: Sequence[int], dtype: str = "F32") -> np.ndarray:
    """A tensor without its values; of a type of 16 bits, as safetensors calls it, or of float32."""
    return np.broadcast_to(np.zeros((), _HALVES.get(dtype, np.float32)), tuple(shape))


def _parts(path: Path) -> list[Path]:
    """The files that an index stands for."""
    return sorted({path.parent / name for name in _weight_map(path).values()}) if path.suffix == ".json" else []


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor -> file of `*.index.json`."""
    files.check_size(path, _LARGEST)
    value = files.read_json(path)
    names = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{path}: no weight_map from tensors to files; copy it again")
    for name in set(names.values()):
        if not _PART_NAME.fullmatch(name):
            raise UserError(f"{path}: {name[:80]!r} is no name of a file of weights; copy it again")
    return names


def _read_parts(path: Path, values: bool) -> dict[str, np.ndarray]:
    """The tensors of the files that an index names."""
    names, tensors = _weight_map(path), {}
    for part in _parts(path):
        read_part = read_safetensors if part.suffix == ".safetensors" else _read_torch
        for name, tensor in read_part(part, values).items():
            if names.get(name) != part.name:
                raise UserError(f"{part}: its tensor {name} is not in {path.name}; copy both again")
            tensors[name] = tensor
    for name in sorted(names.keys() - tensors.keys()):
        raise UserError(f"{path.parent / names[name]}: lacks {name}, which {path.name} names; copy it again")
    return tensors


def read_safetensors(path: Path, values: bool = True) -> dict[str, np.ndarray]:
    """The tensors of one file, as `read` gives them."""
    with _opened(path) as tensors:
        names = tensors.keys()
        if not values:
            parts = {name: tensors.get_slice(name) for name in names}
            return {name: _shaped(part.get_shape(), part.get_dtype()) for name, part in parts.items()}
        return {name: tensors.get_tensor(name) for name in names}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    # A type of numbers that NumPy lacks is a TypeError.
    with _damaged(path, "no safetensors file"):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
        if _LARGEST < size <= path.stat().st_size:  # the library takes a minute for as much as it takes
            raise UserError(f"{path}: its header has more than {_LARGEST} bytes, which no model needs; copy it again")
        with safe_open(path, "np") as tensors:
            yield tensors


@contextlib.contextmanager
def _damaged(path: Path, otherwise: str, remedy: str = "copy it again") -> Iterator[None]:
    """Around what reads a file: its errors, whose kind depends on what is damaged, in our words."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        raise UserError(f"{path}: damaged, or {otherwise} ({first_line(error)}); {remedy}") from error


def _read_torch(path: Path, values: bool) -> dict[str, np.ndarray]:
    """A state dict. The file is a pickle, which torch reads without running it (`weights_only`)."""
    torch = _import_torch(path)
    if values:  # the sums of the zip archive that `torch.save` writes; torch itself does not compare them
        with _damaged(path, "of a torch older than 1.6"), zipfile.ZipFile(path) as archive:
            if name := archive.testzip():
                raise UserError(f"{path}: damaged (the sum of {name[:80]!r} does not fit); copy it again")
    with _damaged(path, "not of tensors alone", f"copy it again, or {_CONVERT}"):
        tensors = torch.load(path, map_location="cpu" if values else "meta", weights_only=True)
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        raise UserError(f"{path}: no dict of tensors by name; {_CONVERT}")
    plain = {
        name: isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_quantized
        for name, x in tensors.items()
    }
    if others := [name for name, is_plain in plain.items() if not is_plain]:
        raise UserError(f"{path}: {others[0][:80]!r} is no plain tensor; {_CONVERT}")
    if not values:
        return {name: _shaped(tensor.shape) for name, tensor in tensors.items()}
    bfloat16 = {name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16}
    return {name: (t.detach().float() if name in bfloat16 else t.detach()).numpy() for name, t in tensors.items()}


def _import_torch(path: Path) -> Any:
    try:
        # None of this project's packages: few folders still need it.
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        way = f"{libraries.install('interop')}, or {_CONVERT}"
        raise UserError(f"{path}: PyTorch's format needs torch: {way}") from error
    if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        raise UserError(f"{path}: torch {torch.__version__} may run what a file says; install {oldest} or newer")
    return torch


_READERS: Mapping[str, Callable[[Path, bool], dict[str, np.ndarray]]] = {
    "model.safetensors": read_safetensors,
    "model.safetensors.index.json": _read_parts,
    "pytorch_model.bin": _read_torch,
    "pytorch_model.bin.index.json": _read_parts,
}
