"""A stand-in for an object store, under toy://: names and contents in a folder of the disk.

An object is there when it is closed, there are no folders and no renaming, and an operation can be made to fail.
"""

import contextlib
import fnmatch
import io
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

from etils import epath

URL = "toy://bucket/run"  # of a work directory
_ROOT = "TOY_STORE"  # in the environment, so that other processes find the same objects


class Bucket:
    """All objects, and what was done to them.

    Attributes:
      log: the operations and the objects that they were on, in order.
      fails: is asked before an operation, with its kind and object; what it returns, if anything, is raised.
    """

    def __init__(self, folder: pathlib.Path):
        folder.mkdir(parents=True, exist_ok=True)
        os.environ[_ROOT] = str(folder)
        self._folder = folder
        self._lock = threading.Lock()
        self.log: list[tuple[str, str]] = []
        self.fails = lambda kind, name: None

    def begin(self, kind: str, name: str) -> None:
        """Notes an operation, or raises."""
        with self._lock:
            if error := self.fails(kind, name):
                raise error
            self.log.append((kind, name))

    def names(self) -> list[str]:
        """Those of all objects."""
        return sorted(unquote(item.name) for item in self._folder.iterdir() if not item.name.startswith("."))

    def path(self, name: str) -> pathlib.Path:
        """The file with an object's content."""
        return self._folder / quote(name, safe="")


_bucket: Bucket | None = None


def bucket(folder: pathlib.Path | None = None) -> Bucket:
    """The one bucket; a new one in an empty folder, or that of the process which started this one."""
    global _bucket
    if folder or not _bucket:
        _bucket = Bucket(folder or pathlib.Path(os.environ[_ROOT]))
    return _bucket


@epath.register_path_cls("toy://")
class ToyPath(epath.Path, pathlib.PurePosixPath):
    """As much of epath's interface as `retrieval.runtime.store` uses."""

    def __str__(self) -> str:
        return super().__str__().replace("toy:/", "toy://", 1)

    @property
    def _object(self) -> str:
        return "/".join(self.parts[1:])

    @contextlib.contextmanager
    def open(self, mode: str = "r", **_: Any) -> Iterator[io.BytesIO]:
        """A whole object, or one that is there when it is closed, whatever has happened meanwhile."""
        bucket().begin({"rb": "read", "wb": "write"}[mode], self._object)
        path = bucket().path(self._object)
        if mode == "rb":
            yield io.BytesIO(path.read_bytes())
            return
        buffer = io.BytesIO()
        try:
            yield buffer
        finally:
            part = path.with_name(f".{threading.get_ident()}")
            part.write_bytes(buffer.getvalue())
            os.replace(part, path)

    def glob(self, pattern: str) -> Iterator["ToyPath"]:
        """Objects, and what would be their folders."""
        bucket().begin("list", self._object)
        wanted = [*self.parts[1:], *pattern.split("/")]
        found = set()
        for name in bucket().names():
            parts = name.split("/")[: len(wanted)]
            if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted)):
                found.add("/".join(parts))
        return iter([type(self)(f"toy://{name}") for name in sorted(found)])

    def unlink(self, missing_ok: bool = False) -> None:
        """Deletes the object."""
        bucket().begin("delete", self._object)
        bucket().path(self._object).unlink(missing_ok=missing_ok)


def contents(folder, tops):
    """Every file of these, by its path."""
    paths = (path for top in tops for path in (folder / top).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def dies_at(kind, name):
    """From the first such operation on, nothing can be done any more."""
    dead = []

    def fails(now, on):
        if dead or (now == kind and name in on):
            dead.append(on)
            return OSError("the machine is gone")

    return fails
