"""Work directories on a store: stages work in a local folder, and what is finished there is put on the store.

The store counts. What the folder has with the same sum is not copied again, and what it alone has goes, but for files
of a stage that is to go on here. The store cannot rename: what is there counts when the file that says so is there, the
record of a stage, or the `manifest.json` of a folder in `refreshed/`. That file is put last and deleted first.

Orbax writes checkpoints to the store itself; of those the folder has the manifests alone.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.common import files, terminal
from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts
from retrieval.common.runtime.lease import Lease
from retrieval.common.runtime.store import Store, all_of, is_url, repeated

CONFIG, RECORDS, CHECKPOINTS, REFRESHED = "config.json", "stages", "checkpoints", "refreshed"
LOGS = "logs"  # there before all else, and maybe alone

_EVERY = 20.0  # seconds after which a file that grows is put on the store again

# In paths of what `files.atomic` is writing.
_UNFINISHED = re.compile(r"(^|/)\.tmp-")

# The variable that tells the folder of all local folders, also to child processes.
_SCRATCH = "RETRIEVAL_SCRATCH"

_stores: dict[Path, Store] = {}  # of the local folders


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
def copy_of(url: str) -> "Artefacts":
    """A work directory on a store that is only read, with its config and its records.

    Raises:
      UserError: the store does not answer.
    """
    copy = Artefacts(url)
    copy.get([CONFIG, RECORDS])
    return copy


def checkpoints(folder: Path) -> Any:
    """Where the checkpoints of a work directory are: in it, or on the store that it is the local folder of."""
    return (_stores[folder].path if folder in _stores else folder) / CHECKPOINTS


def origin(path: Path) -> Any:
    """Where a step of the checkpoints is whose path below a local folder this is."""
    return checkpoints(path.parent.parent) / path.name if path.parent.name == CHECKPOINTS else path


@contextlib.contextmanager
def opened(url: str) -> Iterator["Artefacts"]:
    """A work directory on a store that this run alone writes to, with its config and its records.

    The hosts of a pod have a local folder each.

    Raises:
      UserError: another run writes to it, it is the folder of something else, or the store does not answer.
    """
    own = Artefacts(url, f"host-{hosts.number()}")
    with contextlib.ExitStack() as stack:

        def take() -> None:
            files.lock(own.folder)
            own.lease = Lease(own.store)
            stack.enter_context(own.lease.kept())
            there = {name for name in own.names([""]) if not _is_below(name, [LOGS])}
            if there and CONFIG not in there:
                raise UserError(f"{own.url} is not empty and not a work directory (no {CONFIG}): use another --workdir")

        hosts.on_first(take)
        own.writes = hosts.is_first()
        own.refresh()
        yield own


class Artefacts:
    """A work directory on a store, and the local folder of this process. Several processes that read may share that.

    Attributes:
      writes: whether this process puts on the store what stages have finished.
      changed: the records that were others on the store than here when they were last got.
    """

    def __init__(self, url: str, use: str = "read"):
        self.store = Store(url)
        self.url = self.store.url
        self._place = _make_place(self.url, use)
        self.folder = self._place / self.url.rpartition("/")[2]
        self.folder.mkdir(exist_ok=True)
        self.writes = False
        self.lease: Lease | None = None
        self.changed: set[str] = set()
        self._known: dict[str, tuple[int, int]] = {}  # size and time of files that the store has as they are here
        self._giving = threading.RLock()  # what is older must not come later
        _stores[self.folder] = self.store

    def refresh(self) -> None:
        """Gets config and records."""
        self.changed = self.get([CONFIG, RECORDS])

    def get(self, tops: Collection[str], sums: Mapping[str, str] | None = None) -> set[str]:
        """Makes files and folders, by their paths below the work directory, what they are on the store.

        Args:
          sums: the SHA-256 of files, from records; what is here already, and the same, is not copied again.

        Returns:
          The names of what was another here, or was not here, or has gone.

        Raises:
          UserError: the store does not answer.
        """
        with (self._place / files.LOCK).open("a") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)  # until the file is closed
            stored = set(_complete(self.names(tops)))
            looks = self.looks(tops)
            gone = looks.keys() - stored
            self.drop(gone)
            known = {**(sums or {}), **self._sums_of_manifests(stored)}
            here = files.checksums(self.folder, [self.folder / name for name in looks.keys() & stored & known.keys()])
            wanted = {name for name in stored if name not in here or here[name] != known[name]}
            compared = [name for name in wanted & looks.keys() if _is_below(name, [CONFIG, RECORDS])]
            before = [(self.folder / name).read_bytes() for name in compared]
            self.take(wanted)
            self._known |= self.looks(tops)
            return (wanted | gone) - {n for n, was in zip(compared, before) if (self.folder / n).read_bytes() == was}

    def put(self, tops: Collection[str], deletes: bool = True) -> None:
        """Makes files and folders on the store what they are here; what is not here may stay there.

        Raises:
          UserError: something cannot be written, or another run has taken over.
        """
        with self._giving:
            if self.lease:
                self.lease.renew()
            tops = [top for top in tops if top != CHECKPOINTS]
            looks = self.looks(tops)
            stored = self.names(tops) if deletes else looks.keys()
            for names in _apart(stored - looks.keys())[::-1]:
                all_of(self.store.delete, names)
            self.give({*self.unknown(looks), *(looks.keys() - stored)})

    def unknown(self, looks: Mapping[str, tuple[int, int]]) -> list[str]:
        """Those of some files that are not known to be the same on the store."""
        return [name for name, look in looks.items() if self._known.get(name) != look]

    def give(self, names: Iterable[str]) -> None:
        """Puts some files on the store, the manifests among them last.

        Raises:
          UserError: one cannot be written.
        """
        names = list(names)
        looks = self.looks(names)
        for some in _apart(names):
            all_of(lambda name: self.store.upload(name, self.folder / name), some)
        self._known |= looks

    def take(self, names: Collection[str]) -> None:
        """Gets some files, whatever is here.

        Raises:
          UserError: one cannot be read.
        """
        all_of(lambda name: self.store.download(name, self.folder / name), names)
        self._known |= self.looks(names)

    def drop(self, names: Iterable[str]) -> None:
        """Deletes files here."""
        for name in names:
            files.remove(self.folder / name)
            _remove_empty((self.folder / name).parent)

    def names(self, tops: Iterable[str]) -> set[str]:
        """What the store has of these; of checkpoints the manifests."""
        names = {name for top in tops for name in self.store.sums(top) if name != files.LOCK}
        return {n for n in names if not _is_below(n, [CHECKPOINTS]) or n.endswith(f"/{files.MANIFEST}")}

    def looks(self, tops: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Size and time of what the folder has of these, by name, without what is being written."""
        looks_of: dict[str, tuple[int, int]] = {}
        for top in tops:
            path = self.folder / top
            items = [path] if path.is_file() else [Path(at, file) for at, _, names in os.walk(path) for file in names]
            for item in items:
                name = item.relative_to(self.folder).as_posix()
                if not _UNFINISHED.search(name):
                    stat = item.stat()
                    looks_of[name] = stat.st_size, stat.st_mtime_ns
        return looks_of

    def _sums_of_manifests(self, names: Iterable[str]) -> dict[str, str]:
        """What the manifests among these say of the files beside them; a damaged one says nothing."""
        sums = {}
        for name in names:
            if name.endswith(f"/{files.MANIFEST}") and not _is_below(name, [CHECKPOINTS]):
                with contextlib.suppress(ValueError, AttributeError):
                    listed = json.loads(self.store.read(name) or b"{}").items()
                    sums |= {name.removesuffix(files.MANIFEST) + file: sum for file, sum in listed}
        return sums


class Exchange:
    """Hosts with a disk each work on some folders as if they had one: at every `hosts.on_first` they exchange files.

    The files go over the store. Each is compared with its SHA-256 when it has arrived. Where two hosts have one, the
    first host's counts. All hosts call the same methods in the same order.
    """

    def __init__(self, copy: Artefacts, tops: Collection[str]):
        """Begins with what is there; `tops` are files and folders by their paths below the work directory."""
        self._copy, self._tops = copy, tops
        self._looks: dict[str, tuple[int, int]] = {}  # by which a file is known to be the same
        self._sums: dict[str, str] = {}

    def gather(self) -> None:
        """Brings to the first host what the others have written.

        Raises:
          UserError: a file cannot be copied, or is not what was written.
        """
        self._look()
        for sums in hosts.to_first({} if hosts.is_first() else self._give()):
            self._take({name: sum for name, sum in sums.items() if name not in self._sums})

    def spread(self) -> None:
        """Brings to the others what the first one has, and deletes there what it has not."""
        self._look()
        sums: dict[str, str] = hosts.tell_all(self._give)
        if not hosts.is_first():
            self._copy.drop(self._sums.keys() - sums.keys())
            self._take({name: sum for name, sum in sums.items() if self._sums.get(name) != sum})

    def _give(self) -> dict[str, str]:
        """Puts on the store what is new here; the sums of all that this host has."""
        self._copy.give(self._copy.unknown(self._looks))
        return self._sums

    def _take(self, sums: Mapping[str, str]) -> None:
        self._copy.take(sums)
        self._look()
        for name in sums:
            if self._sums[name] != sums[name]:
                raise UserError(
                    f"{self._copy.url}/{name}: not what another host wrote; does anybody else write there? start again"
                )

    def _look(self) -> None:
        """Takes up the sums of what has changed."""
        looks = self._copy.looks(self._tops)
        changed = [self._copy.folder / name for name, look in looks.items() if self._looks.get(name) != look]
        sums = self._sums | files.checksums(self._copy.folder, changed)
        self._sums, self._looks = {name: sums[name] for name in looks}, looks


@contextlib.contextmanager
def followed(copy: Artefacts | None, top: str) -> Iterator[None]:
    """In the block a file or a folder, by its path below the work directory, is put on the store by this process.

    A store that does not answer does no harm: what counts is put there otherwise.
    """
    if copy is None:
        yield
        return

    def put() -> None:
        with contextlib.suppress(UserError):
            copy.put([top], deletes=False)

    try:
        with repeated(put, _EVERY):
            yield
    finally:
        put()


@contextlib.contextmanager
def logged(copy: Artefacts) -> Iterator[None]:
    """In the block the log is followed too: `logs/host-NUMBER-TIME.log`, of each host and each of its starts."""
    name = f"{LOGS}/host-{hosts.number()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.log"
    (copy.folder / name).parent.mkdir(exist_ok=True)
    handler = logging.FileHandler(copy.folder / name, encoding="utf-8")
    handler.setFormatter(terminal.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("retrieval")
    logger.addHandler(handler)
    try:
        with followed(copy, name):
            try:
                yield
            except BaseException as error:
                reason = f"{type(error).__name__}: {error}"  # the terminal has it from who ends the process
                handler.handle(logging.LogRecord(logger.name, logging.ERROR, "", 0, reason, None, None))
                raise
    finally:
        logger.removeHandler(handler)
        handler.close()


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


def _is_below(name: str, tops: Iterable[str]) -> bool:
    return any(name == top or name.startswith(f"{top}/") for top in tops)


def _complete(names: Collection[str]) -> list[str]:
    """Those of refreshed pairs only where their folder has its manifest."""
    manifest_of = lambda name: f"{'/'.join(name.split('/')[:2])}/{files.MANIFEST}"  # noqa: E731
    return [name for name in names if not _is_below(name, [REFRESHED]) or manifest_of(name) in names]


def _apart(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The names of data, and those of manifests."""
    names = list(names)
    manifests = [name for name in names if name.endswith(f"/{files.MANIFEST}")]
    return [name for name in names if name not in set(manifests)], manifests
