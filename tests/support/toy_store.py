"""A stand-in for an object store, under s3://: objects are files of a folder, which other processes find as well.

An object is there when it is closed, there is no renaming, and an operation can be made to fail. TensorStore reads and
writes the files themselves, so of arrays nothing is noted and nothing fails.
"""

import errno
import hashlib
import io
import os
import pathlib
import threading
from typing import Any

import fsspec

from retrieval.common.runtime import artefacts, store

URL = "s3://bucket/run"  # of a work directory
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
        self.folder = folder
        self._lock = threading.Lock()
        self.log: list[tuple[str, str]] = []
        self.fails = lambda kind, name: None

    def begin(self, kind: str, name: str) -> None:
        """Notes an operation, or raises."""
        with self._lock:
            if error := self.fails(kind, name):
                raise error
            self.log.append((kind, name))

    def names(self, below: str = "") -> list[str]:
        """Those of all objects, or of those below a name."""
        top = self.folder / below
        paths = [top] if top.is_file() else [p for p in top.rglob("*") if p.is_file() and ".part" not in p.name]
        return sorted(path.relative_to(self.folder).as_posix() for path in paths)

    def path(self, name: str) -> pathlib.Path:
        """The file with an object's content."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


_bucket: Bucket | None = None


def bucket(folder: pathlib.Path | None = None) -> Bucket:
    """The one bucket; a new one in an empty folder, or that of the process which started this one."""
    global _bucket
    if folder or not _bucket:
        fsspec.register_implementation("s3", ToyFileSystem, clobber=True)
        store.array_store = _array_store
        artefacts.copy_of.cache_clear()
        _bucket = Bucket(folder or pathlib.Path(os.environ[_ROOT]))
    return _bucket


def _array_store(url: str) -> dict[str, Any]:
    """The folder of the disk; Orbax asks for one file as well, of which a disk takes no slash."""
    path = f"{bucket().folder}/{url.partition('://')[2].rstrip('/')}"
    return {"driver": "file", "path": path if path.endswith("_sharding") else f"{path}/"}


class _Writing(io.BytesIO):
    """An object that is there when it is closed, whatever has happened meanwhile."""

    def __init__(self, name: str):
        super().__init__()
        self._name = name

    def close(self) -> None:
        if not self.closed:
            _replace(self._name, self.getvalue())
        super().close()


def _replace(name: str, content: bytes) -> None:
    part = bucket().path(f"{name}.part{threading.get_ident()}")
    part.write_bytes(content)
    os.replace(part, bucket().path(name))


class ToyFileSystem(fsspec.AbstractFileSystem):
    """As much of fsspec's interface as `retrieval.common.runtime.store`, epath and Orbax use."""

    protocol = "s3"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        file = bucket().folder / name
        if file.is_file():
            content = file.read_bytes()
            return {"name": name, "type": "file", "size": len(content), "ETag": hashlib.md5(content).hexdigest()}
        if bucket().names(name):
            return {"name": name, "type": "directory", "size": 0}
        raise FileNotFoundError(name)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        name = self._strip_protocol(path)
        depth = name.count("/") + 2
        found = sorted({"/".join(other.split("/")[:depth]) for other in bucket().names(name)})
        return [self.info(other) for other in found] if detail else found

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any):
        if withdirs:  # for a pattern
            return super().find(path, maxdepth, withdirs, detail)
        name = self._strip_protocol(path)
        bucket().begin("list", name)
        found = {other: self.info(other) for other in bucket().names(name)}
        return found if detail else list(found)

    def cat_file(self, path: str, **_: Any) -> bytes:
        name = self._strip_protocol(path)
        bucket().begin("read", name)
        return bucket().path(name).read_bytes()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", IfMatch: str = "", **_: Any) -> dict:
        name = self._strip_protocol(path)
        bucket().begin("write", name)
        if IfMatch and self.info(path)["ETag"] != IfMatch:
            raise OSError(errno.EINVAL, "a precondition failed")
        if mode == "create":
            with bucket().path(name).open("xb") as file:
                file.write(value)
        else:
            _replace(name, value)
        return {"ETag": hashlib.md5(value).hexdigest()}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        name = self._strip_protocol(path)
        bucket().begin({"r": "read", "w": "write"}[mode[0]], name)
        return io.BytesIO(bucket().path(name).read_bytes()) if mode[0] == "r" else _Writing(name)

    def rm_file(self, path: str) -> None:
        name = self._strip_protocol(path)
        bucket().begin("delete", name)
        bucket().path(name).unlink()

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """There are no folders."""

    makedirs = mkdir

    def rm(self, path: str, recursive: bool = False, **_: Any) -> None:
        for name in bucket().names(self._strip_protocol(path)):
            self.rm_file(name)


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
