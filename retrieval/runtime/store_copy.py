"""Copies of work directories that are on an object store: a store has the same files under the same names.

What is copied down is verified where it is read, as ever, by the sums in records and manifests.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from retrieval import files
from retrieval.errors import UserError
from retrieval.runtime.store import Store, all_of, is_url

CONFIG, RECORDS = "config.json", "stages"

# Folders of folders, each of which is whole when it has its manifest, and then stays as it is.
SEALED = ("checkpoints", "refreshed")

# In paths of what is being written or deleted, by `files.atomic` and by Orbax.
_UNFINISHED = re.compile(r"(^|/)(\.tmp-|trash/|[^/]*\.orbax-checkpoint-tmp)")

# The variable that tells the folder of all local folders, also to child processes.
_SCRATCH = "RETRIEVAL_SCRATCH"


def set_scratch(folder: Path) -> None:
    """The folder that all local folders are in from now on."""
    os.environ[_SCRATCH] = str(folder.absolute())


def local(value: str) -> Path:
    """The folder of a work directory that is only read; of one on a store that of the copy.

    Raises:
      UserError: the store does not answer.
    """
    return copy_of(value).folder if is_url(value) else Path(value)


@functools.cache
def copy_of(url: str) -> "Copy":
    """The copy of a work directory that is only read, with its config and its records.

    Raises:
      UserError: the store does not answer.
    """
    copy = Copy(url)
    copy.bring([CONFIG, RECORDS])
    return copy


class Copy:
    """What a store has of a work directory, as far as it was asked for. Several processes may share the folder.

    Attributes:
      url: where the work directory is.
      folder: where the copy is.
    """

    def __init__(self, url: str, use: str = "read"):
        self._store = Store(url)
        self.url = self._store.url
        self._place = _make_place(self.url, use)
        self.folder = self._place / self.url.rpartition("/")[2]
        self.folder.mkdir(exist_ok=True)

    def bring(self, tops: Collection[str], sums: Mapping[str, str] | None = None) -> None:
        """Makes files and folders, by their paths below the work directory, what they are on the store.

        Args:
          sums: the SHA-256 of files, from records; what is here already, and the same, is not copied again.

        Raises:
          UserError: the store does not answer.
        """
        with (self._place / files.LOCK).open("a") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)  # until the file is closed
            self._bring(tops, sums or {})

    def fetch(self, tops: Collection[str]) -> None:
        """As `bring`, of a store that another process writes to meanwhile."""
        self.__dict__.pop("_there", None)
        self.bring(tops)

    def give(self, names: Iterable[str]) -> None:
        """Copies up files that another host is to have; they do not count before the record of their stage does.

        Raises:
          UserError: one cannot be written.
        """
        data, manifests = apart(names)
        for some in (data, manifests):
            all_of(lambda name: self._store.upload(name, self.folder / name), some)
        self._there.update(data, manifests)

    def take(self, names: Collection[str]) -> None:
        """Copies down files that another host has given.

        Raises:
          UserError: one cannot be read.
        """
        all_of(lambda name: self._store.download(name, self.folder / name), names)
        self._there.update(names)

    def drop(self, names: Iterable[str]) -> None:
        """Deletes files here."""
        for name in names:
            files.remove(self.folder / name)
            _remove_empty((self.folder / name).parent)

    def looks(self, tops: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Size and time of what the folder has of these, by name."""
        looks_of = {}
        for name in self._here(tops):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                stat = (self.folder / name).stat()
                looks_of[name] = stat.st_size, stat.st_mtime_ns
        return looks_of

    @functools.cached_property
    def _there(self) -> set[str]:
        """The names of what the store has."""
        return self._store.names() - {files.LOCK}

    def _bring(self, tops: Collection[str], sums: Mapping[str, str]) -> None:
        stored = {name for name in complete(self._there) if is_below(name, tops)}
        here = set(self._here(tops))
        self.drop(here - stored)
        sums = {**sums, **self._sums_of_manifests(stored)}
        local_sums = files.checksums(self.folder, [self.folder / name for name in here & stored & sums.keys()])
        wanted = [name for name in stored if name not in local_sums or local_sums[name] != sums[name]]
        all_of(lambda name: self._store.download(name, self.folder / name), wanted)

    def _sums_of_manifests(self, names: Iterable[str]) -> dict[str, str]:
        """What the manifests among these say of the files beside them; a damaged one says nothing."""
        sums = {}
        for name in names:
            if name.endswith(f"/{files.MANIFEST}"):
                with contextlib.suppress(ValueError, AttributeError):
                    listed = json.loads(self._store.read(name) or b"{}").items()
                    sums |= {name.removesuffix(files.MANIFEST) + file: sum for file, sum in listed}
        return sums

    def _here(self, tops: Iterable[str]) -> list[str]:
        """The names of what the folder has of these, one after the other, without what is being written."""
        paths = []
        for top in tops:
            path = self.folder / top
            items = [path] if path.is_file() else [Path(at, file) for at, _, names in os.walk(path) for file in names]
            paths += [item.relative_to(self.folder).as_posix() for item in items]
        return [name for name in paths if not _UNFINISHED.search(name)]


def _make_place(url: str, use: str) -> Path:
    """The folder with the local folder of a work directory. The last name is that of the run."""
    scratch = Path(os.environ.get(_SCRATCH) or f"{tempfile.gettempdir()}/retrieval-{os.getuid()}")
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    if scratch.stat().st_uid != os.getuid():
        raise UserError(f"--scratch={scratch}: the folder belongs to somebody else; name one of your own")
    short, digest = re.sub(r"\W+", "-", url)[:80], hashlib.sha256(url.encode()).hexdigest()[:8]
    place = scratch / f"{short}-{digest}" / use
    place.mkdir(parents=True, exist_ok=True)
    return place


def _remove_empty(folder: Path) -> None:
    """Removes a folder with nothing in it, and those that it leaves empty: a store has none."""
    with contextlib.suppress(OSError):
        folder.rmdir()
        _remove_empty(folder.parent)


def is_below(name: str, tops: Iterable[str]) -> bool:
    return any(name == top or name.startswith(f"{top}/") for top in tops)


def sealed_folder(name: str) -> str:
    """The sealed folder that a file is in."""
    return "/".join(name.split("/")[:2])


def complete(names: Iterable[str]) -> list[str]:
    """Those of sealed folders only where these have their manifest."""
    names = list(names)
    known = set(names)
    return [name for name in names if not is_below(name, SEALED) or f"{sealed_folder(name)}/{files.MANIFEST}" in known]


def apart(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The names of data, and those of manifests."""
    names = list(names)
    manifests = [name for name in names if name.endswith(f"/{files.MANIFEST}")]
    return [name for name in names if name not in set(manifests)], manifests
