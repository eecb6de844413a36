"""What a bare machine has not: with this imported first, packages that texts and files need are there in name alone.

The packed data are token ids, so no tokeniser and no file of weights is ever read. What asks for something in one of
these packages gets a class that cannot be made. Where they are installed, they are what they are.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

NAMES = ("tokenizers", "safetensors", "Stemmer", "tqdm")
# What is called all the same: the list of stemmers, and what goes around a loop and shows how far it is.
_KNOWN: Mapping[str, Callable[..., Any]] = {"algorithms": tuple, "tqdm": lambda steps, **_: steps}


class _Named(type):
    """The type of a class of a package that is not there, or of what looks like one."""

    def __getattr__(cls, name: str) -> Any:
        return _named(name)


class _Absent(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return _named(name)


def _named(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _KNOWN.get(name) or _Named(name, (Exception,), {"__init__": _refuse})


def _refuse(self: object, *_: Any, **__: Any) -> None:
    raise ImportError(f"{type(self).__name__} is of a package that this machine has not")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname.partition(".")[0] in NAMES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(_Finder())  # the last one: what is installed is found before
