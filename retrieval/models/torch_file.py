"""Tensors of a file that `torch.save` wrote (`pytorch_model.bin`), without torch and without running what it says.

Such a file is a zip archive: `NAME/data.pkl`, a pickle that puts the state dict together, and `NAME/data/KEY`, the
bytes of each storage. A pickle is a program that may call any function. Here it is read by an interpreter of our own,
which knows the few instructions that a dict of tensors takes, and three functions, none of which does more than name
its arguments; anything else is refused.
"""

import math
import pickletools
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from retrieval.errors import UserError

_LARGEST_PROGRAM = 16 << 20  # bytes; BERT's is 50 kB

_DTYPES = {
    "torch FloatStorage": np.dtype(np.float32),
    "torch DoubleStorage": np.dtype(np.float64),
    "torch HalfStorage": np.dtype(np.float16),
    "torch BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch LongStorage": np.dtype(np.int64),
    "torch IntStorage": np.dtype(np.int32),
    "torch ByteStorage": np.dtype(np.uint8),
    "torch BoolStorage": np.dtype(bool),
}
_DICT, _TENSOR, _PARAMETER = (
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
)
_MOST = 4  # times the bytes of its storages that the tensors of a file may take: tied weights share theirs
_REMEDY = "save it anew, as model.safetensors: model.save_pretrained(FOLDER)"


class _Storage(NamedTuple):
    dtype: np.dtype
    key: str
    size: int


class _Tensor(NamedTuple):
    """A view of a storage; offset and strides count values, not bytes."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Name(NamedTuple):
    """A class or function that the program speaks of; nothing is ever imported."""

    name: str


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dict by name, in the types that they are saved in.

    Raises:
      UserError: the file is damaged, of another format, or holds anything but tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive)
    except zipfile.BadZipFile as error:
        raise UserError(
            f"{path}: damaged, or written by a torch older than 1.6 ({error}); copy it again, or {_REMEDY}"
        ) from error
    except _RefusedError as error:
        raise UserError(f"{path}: {error}; {_REMEDY}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:  # a pickle can be wrong in any way
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error}); copy it again, or {_REMEDY}") from error


class _RefusedError(Exception):
    """The file asks for what a dict of tensors does not need."""


def _read(archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    members = {member.filename: member for member in archive.infolist()}
    if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
        raise _RefusedError("compressed, which torch never writes")
    programs = [name for name in members if name.endswith("data.pkl") and name.count("/") <= 1]
    if len(programs) != 1 or members[programs[0]].file_size > _LARGEST_PROGRAM:
        raise _RefusedError(f"one small data.pkl is needed, and there are {len(programs)}")
    root = programs[0].removesuffix("data.pkl")
    if f"{root}byteorder" in members and archive.read(f"{root}byteorder") != b"little":
        raise _RefusedError("written on a big-endian machine")
    values = _run(archive.read(programs[0]))
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise _RefusedError("no dict of tensors by name")
    others = [name for name, value in values.items() if not isinstance(value, _Tensor)]
    if others:
        raise _RefusedError(f"{_shown(others[0])} is no tensor")
    sizes = [math.prod(value.shape) * value.storage.dtype.itemsize for value in map(_checked, values.values())]
    stored = [member.file_size for name, member in members.items() if name.startswith(f"{root}data/")]
    if sum(sizes) > _MOST * sum(stored):
        raise _RefusedError("its tensors are larger than what is in it")
    storages: dict[_Storage, np.ndarray] = {}
    for value in values.values():
        if value.storage not in storages:
            storages[value.storage] = _storage(archive, root, value.storage)
    return {name: _view(storages[value.storage], value) for name, value in values.items()}


def _storage(archive: zipfile.ZipFile, root: str, storage: _Storage) -> np.ndarray:
    values = np.frombuffer(archive.read(f"{root}data/{storage.key}"), storage.dtype)
    if len(values) != storage.size:
        raise ValueError(f"storage {storage.key} has {len(values)} values, not {storage.size}")
    return values


def _checked(tensor: _Tensor) -> _Tensor:
    """A tensor whose view is inside of its storage, and shows no more values than that has."""
    storage, offset, shape, strides = tensor
    numbers = (storage.size, offset, *shape, *strides)
    if len(shape) != len(strides) or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a tensor whose shape or strides are none")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
    if math.prod(shape) and (last >= storage.size or math.prod(shape) > storage.size):
        raise ValueError(f"a tensor with more values than its storage, which has {storage.size}")
    return tensor


def _view(values: np.ndarray, tensor: _Tensor) -> np.ndarray:
    """A copy of what a tensor shows of its storage."""
    if not math.prod(tensor.shape):
        return np.zeros(tensor.shape, values.dtype)
    strides = [stride * values.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.shape, strides, writeable=False).copy()


def _run(program: bytes) -> Any:
    """What a pickle makes, of dicts, lists, tuples, numbers, texts and tensors alone."""
    stack: list[Any] = []
    marked: list[list[Any]] = []
    memo: dict[int, Any] = {}
    for opcode, argument, _ in pickletools.genops(program):
        name = opcode.name
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _LITERALS:
            stack.append(argument)
        elif name in ("PROTO", "FRAME"):
            pass
        elif name == "MARK":
            marked.append(stack)
            stack = []
        elif name == "TUPLE":
            items, stack = stack, marked.pop()
            stack.append(tuple(items))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(_top(stack, count))]
        elif name in ("SETITEM", "SETITEMS"):
            if name == "SETITEM":
                items = [stack.pop(-2), stack.pop()]
            else:
                items, stack = stack, marked.pop()
            _of(dict, stack[-1]).update(zip(items[::2], items[1::2], strict=True))
        elif name in ("APPEND", "APPENDS"):
            if name == "APPEND":
                items = [stack.pop()]
            else:
                items, stack = stack, marked.pop()
            _of(list, stack[-1]).extend(items)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "GLOBAL":
            stack.append(_known(argument))
        elif name == "STACK_GLOBAL":
            stack[-2:] = [_known(" ".join(_top(stack, 2)))]
        elif name == "BINPERSID":
            stack.append(_persistent(stack.pop()))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_call(stack.pop(), arguments))
        elif name == "BUILD":  # torch notes versions in an attribute of its state dicts
            stack.pop()
            _of(dict, stack[-1])
        elif name == "STOP":
            return stack.pop()
        else:
            raise _RefusedError(f"asks for the pickle instruction {name}, which a dict of tensors does not need")
    raise ValueError("a pickle without an end")


_CONSTANTS = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_LITERALS = frozenset("BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8".split())


def _top(stack: list[Any], count: int) -> list[Any]:
    if len(stack) < count:
        raise IndexError("the stack is empty")
    return stack[-count:]


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__} is needed, and there is a {type(value).__name__}")
    return value


def _known(name: str) -> _Name:
    if name not in (*_DTYPES, _DICT, _TENSOR, _PARAMETER):
        raise _RefusedError(f"asks for {_shown(name.replace(' ', '.'))}, which a dict of tensors does not need")
    return _Name(name)


def _persistent(value: Any) -> _Storage:
    kind, (storage, key, _, size) = value[0], value[1:]
    if kind != "storage" or not isinstance(storage, _Name) or type(key) is not str or type(size) is not int:
        raise ValueError("an object outside of the file that is no storage")
    return _Storage(_DTYPES[storage.name], key, size)


def _call(function: Any, arguments: Any) -> Any:
    name = _of(_Name, function).name
    if name == _DICT:
        return dict(_of(tuple, arguments)[0]) if arguments else {}
    if name == _TENSOR:
        storage, offset, shape, strides = arguments[:4]
        return _Tensor(_of(_Storage, storage), offset, _of(tuple, shape), _of(tuple, strides))
    if name == _PARAMETER:
        return _of(_Tensor, arguments[0])
    raise _RefusedError(f"calls '{name}'")


def _shown(text: str) -> str:
    return repr(text[:80])
