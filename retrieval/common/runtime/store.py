"""The objects below an address such as gs://bucket/run or s3://bucket/run, through fsspec.

An object is there when it has been closed, whole; there are no folders and no renaming.
"""

import contextlib
import errno
import functools
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError, first_line, unknown_name

_URL = re.compile(r"([a-zA-Z][\w+.-]*)://(.*)")

# The package of fsspec for a scheme. Those that TensorStore can write arrays to.
_PACKAGES = {"gs": "gcsfs", "s3": "s3fs"}

# Copied at a time.
_THREADS = 16


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
        match = _URL.fullmatch(url)
        self.scheme, rest = match.groups() if match else ("", "")
        self._root = rest.strip("/")
        self.url = f"{self.scheme}://{self._root}"
        if not self._root or set("*?[") & set(rest):
            raise UserError(f"{url}: no address on a store without wildcards; write one such as gs://bucket/run")
        if self.scheme not in _PACKAGES:
            raise unknown_name(f"scheme of {url}:", self.scheme, _PACKAGES)
        self._system: Any = _file_system(self.scheme)

    @property
    def path(self) -> Any:
        """The address as Orbax takes it, an `etils.epath.Path`."""
        from etils import epath

        return epath.Path(self.url)

    def sums(self, below: str = "") -> dict[str, str]:
        """Size and checksum of all objects, or of those below a name, as the store has computed it; by name.

        Raises:
          UserError: they cannot be listed, or one would lead out of a folder.
        """
        with self._telling("listed", below):
            listed = self._system.find(f"{self._root}/{below}".rstrip("/"), detail=True)
        sums = {name.removeprefix(f"{self._root}/"): _sum(info) for name, info in listed.items()}
        if leaving := [name for name in sums if ".." in PurePosixPath(name).parts]:
            raise UserError(f"{self.url}/{leaving[0]}: its name leads out of a folder; delete this object")
        return sums

    def read(self, name: str) -> bytes | None:
        """What an object holds, None where there is none."""
        with self._telling("read", name), contextlib.suppress(FileNotFoundError):
            return self._system.cat_file(f"{self._root}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Makes an object, or puts another in its place."""
        with self._telling("written", name):
            self._system.pipe_file(f"{self._root}/{name}", content)

    def tag(self, name: str) -> str | None:
        """What tells an object from others that had its name before; None where there is none."""
        with self._telling("read", name), contextlib.suppress(FileNotFoundError):
            info = self._system.info(f"{self._root}/{name}")
            return str(info.get("generation") or info["ETag"])

    def replace(self, name: str, content: bytes, tag: str | None) -> str | None:
        """Makes an object where the one of a tag is, or none; the store decides: of several who ask, one succeeds.

        Returns:
          The tag of what is there now; None where something else was there.
        """
        with self._telling("written", name):
            try:
                if self.scheme == "gs":
                    return self._upload_on_gs(name, content, tag)
                expected = {"IfMatch": tag} if tag else {"mode": "create"}
                return self._system.pipe_file(f"{self._root}/{name}", content, **expected)["ETag"]
            except OSError as error:
                # Of s3fs a tag that is not there any more is an invalid argument.
                gone = tag and (isinstance(error, FileNotFoundError) or error.errno == errno.EINVAL)
                if gone or isinstance(error, FileExistsError):
                    return None
                raise

    def _upload_on_gs(self, name: str, content: bytes, tag: str | None) -> str:
        """As `replace`, by the generation, which gcsfs asks for only where there is no object."""
        bucket, _, folder = self._root.partition("/")
        described = json.dumps({"name": f"{folder}/{name}".lstrip("/")}).encode()
        parts = (b"application/json\r\n\r\n" + described, b"application/octet-stream\r\n\r\n" + content)
        made = self._system.call(
            "POST",
            self._system.base.replace("/storage/", "/upload/storage/") + "b/{}/o",
            bucket,
            uploadType="multipart",
            ifGenerationMatch=tag or "0",
            headers={"Content-Type": 'multipart/related; boundary="part"'},
            data=b"".join(b"--part\r\nContent-Type: " + part + b"\r\n" for part in parts) + b"--part--",
            json_out=True,
        )
        return made["generation"]

    def upload(self, name: str, path: Path) -> None:
        """As `write`, with what a file holds."""
        with self._telling("written", name):
            self._system.put_file(str(path), f"{self._root}/{name}")

    def download(self, name: str, path: Path) -> None:
        """Writes what an object holds into a file, whole or not at all."""
        with files.atomic(path) as part, self._telling("read", name):
            self._system.get_file(f"{self._root}/{name}", str(part))

    def delete(self, name: str) -> None:
        """Nothing happens where there is none."""
        with self._telling("deleted", name), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(f"{self._root}/{name}")

    @contextlib.contextmanager
    def _telling(self, what: str, name: str = "") -> Iterator[None]:
        """Whatever the libraries raise, which is anything, as a `UserError`."""
        try:
            yield
        except Exception as error:
            why = "no such bucket or object" if isinstance(error, FileNotFoundError) else first_line(error)
            where = f"{self.url}{name and '/'}{name}"
            raise UserError(f"{where}: cannot be {what} ({why}); give us access: the same command goes on") from error


def array_store(url: str) -> dict[str, Any]:
    """The address of a folder of arrays as TensorStore takes it. Of a server that speaks S3, AWS_ENDPOINT_URL tells."""
    scheme, bucket, path = re.fullmatch(r"(\w+)://([^/]+)/?(.*)", url).groups()  # pyright: ignore[reportOptionalMemberAccess]
    spec = {"driver": {"gs": "gcs"}.get(scheme, scheme), "bucket": bucket, "path": f"{path.rstrip('/')}/"}
    if scheme == "s3" and (endpoint := os.environ.get("AWS_ENDPOINT_URL")):
        spec |= {"endpoint": endpoint, "aws_region": os.environ.get("AWS_DEFAULT_REGION", "us-east-1")}
    return spec


@contextlib.contextmanager
def repeated(function: Callable[[], Any], seconds: float) -> Iterator[None]:
    """In the block a thread calls a function again and again, so many seconds apart."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            function()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def all_of(function: Callable[[str], Any], names: Iterable[str]) -> None:
    """Calls a function with each of some names, several at a time. Only the main thread is interrupted."""
    pool = ThreadPoolExecutor(_THREADS)
    try:
        list(pool.map(function, names))
    finally:
        pool.shutdown(cancel_futures=True)


@functools.cache
def _file_system(scheme: str) -> Any:
    """fsspec's, which epath is told to take as well."""
    import fsspec
    from etils.epath import gpath
    from fsspec.config import conf

    os.environ["EPATH_USE_TF"] = "false"
    gpath._is_tf_installed.cache_clear()  # another package may have made epath look before
    # What another machine writes must be seen at once.
    conf.setdefault(scheme, {}).setdefault("use_listings_cache", False)
    try:
        return fsspec.filesystem(scheme)
    except ImportError as error:
        package = _PACKAGES[scheme]
        raise UserError(f"{scheme}://: the package {package} is not installed: pip install {package}") from error


def _sum(info: dict[str, Any]) -> str:
    """Size and checksum, as fsspec has them: on GCS the MD5, or the CRC of an object in parts; on S3 the tag."""
    return f"{info['size']} {info.get('md5Hash') or info.get('crc32c') or info.get('ETag')}"
