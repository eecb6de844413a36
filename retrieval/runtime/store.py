"""The objects below an address such as gs://bucket/run, through etils.epath.

An object is there when it has been closed, whole; there are no folders and no renaming. Where TensorFlow has no file
system for a scheme, epath takes fsspec's.
"""

import contextlib
import errno
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from retrieval import files
from retrieval.errors import UserError, first_line, unknown_name

_URL = re.compile(r"([a-zA-Z][\w+.-]*)://(.*)")

# The package of fsspec for a scheme. TensorFlow itself has gs:// alone.
_PACKAGES = {"gs": "gcsfs", "s3": "s3fs", "az": "adlfs"}

# Copied at a time, and bytes of each that are held; what is no longer is written at once.
_THREADS, _PIECE = 16, 1 << 24
_TRIES = 10


def is_url(value: str) -> bool:
    """Whether this is the address of a store, and not a path."""
    return bool(_URL.match(value))


class Store:
    """Objects by their names, the parts of their address below that of the store."""

    def __init__(self, url: str):
        """Asks nothing of the store yet.

        Raises:
          UserError: there is no such scheme, or no package for it; or a character stands for others.
        """
        if not (match := _URL.fullmatch(url)):
            raise UserError(f"{url}: not the address of a store; write one such as gs://bucket/run")
        scheme, rest = match.groups()
        self.url = f"{scheme}://{rest.strip('/')}"
        if not rest.strip("/"):
            raise UserError(f"{url}: no bucket; name one, and a folder in it, such as gs://bucket/run")
        if strange := set("*?[") & set(rest):
            raise UserError(
                f"{url}: '{min(strange)}' stands for other characters where objects are looked for; name an address "
                "without it"
            )
        if package := _PACKAGES.get(scheme):
            _choose_backend(url, scheme, package)
        from etils import epath  # late: runs in folders need none of it

        try:
            self._root = epath.Path(self.url)
        except KeyError:
            raise unknown_name(f"scheme of {url}:", scheme, _PACKAGES) from None

    def names(self) -> set[str]:
        """All of them.

        Raises:
          UserError: they cannot be listed, or one would lead out of a folder.
        """
        matching, pattern = set(), "*"
        # A level at a time: walking would ask of every object whether it is a folder.
        with self._telling("listed"):
            while level := {str(path).removeprefix(f"{self.url}/") for path in self._root.glob(pattern)}:
                matching |= level
                pattern += "/*"
        if leaving := [name for name in matching if ".." in PurePosixPath(name).parts]:
            raise UserError(f"{self.url}/{leaving[0]}: its name leads out of a folder; delete this object")
        return matching - {parent.as_posix() for name in matching for parent in PurePosixPath(name).parents}

    def read(self, name: str) -> bytes | None:
        """What an object holds, None where there is none."""
        with self._telling("read", name):
            for left in reversed(range(_TRIES)):
                try:
                    with (self._root / name).open("rb") as file:
                        return file.read()
                except FileNotFoundError:
                    return None
                except OSError as error:  # s3fs: replaced between the two requests that it makes, as a lease may be
                    if error.errno != errno.EBUSY or not left:
                        raise

    def write(self, name: str, content: bytes) -> None:
        """Makes an object, or puts another in its place."""
        with self._telling("written", name), (self._root / name).open("wb") as file:
            file.write(content)

    def upload(self, name: str, path: Path) -> bool:
        """As `write`, with what a file holds; False where there is none (any more)."""
        try:
            source = path.open("rb")
        except FileNotFoundError:
            return False
        with source, self._telling("written", name), (self._root / name).open("wb") as file:
            shutil.copyfileobj(source, file, _PIECE)
        return True

    def download(self, name: str, path: Path) -> None:
        """Writes what an object holds into a file, whole or not at all."""
        with (
            files.atomic(path) as part,
            self._telling("read", name),
            (self._root / name).open("rb") as source,
            part.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, _PIECE)

    def delete(self, name: str) -> None:
        """Nothing happens where there is none."""
        with self._telling("deleted", name), contextlib.suppress(FileNotFoundError):
            (self._root / name).unlink()

    @contextlib.contextmanager
    def _telling(self, what: str, name: str = "") -> Iterator[None]:
        """Whatever the libraries raise, which is anything, as a `UserError`."""
        try:
            yield
        except Exception as error:
            raise UserError(
                f"{self.url}{name and '/'}{name}: cannot be {what} ({first_line(error)}); see that the bucket is there "
                "and may be read and written to from here; the same command goes on from what is finished"
            ) from error


def all_of(function: Callable[[str], Any], names: Iterable[str]) -> None:
    """Calls a function with each of some names, several at a time. Only the main thread is interrupted."""
    pool = ThreadPoolExecutor(_THREADS)
    try:
        for _ in pool.map(function, names):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _choose_backend(url: str, scheme: str, package: str) -> None:
    """fsspec, where its package for the scheme is installed, else TensorFlow."""
    if importlib.util.find_spec(package):
        from etils.epath import gpath
        from fsspec.config import conf

        os.environ.setdefault("EPATH_USE_TF", "false")
        gpath._is_tf_installed.cache_clear()  # another package may have made epath look before
        # What another machine writes must be seen at once. The variable for it is read when fsspec is imported, which
        # other packages do.
        conf.setdefault(scheme, {}).setdefault("use_listings_cache", False)
    elif scheme != "gs":
        raise UserError(f"{url}: the package {package} is not installed: pip install {package}, or use a gs:// folder")
