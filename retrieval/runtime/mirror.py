"""Work directories on an object store: a run works in a local folder, and what is finished there is copied up.

The store has the same files under the same names. It cannot rename. So what is there counts when the file that says so
is there: the record of a stage, or the `manifest.json` of a checkpoint. That file is copied last and deleted first.
What is copied down is verified where it is read, as ever, by the sums in these files.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import secrets
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from retrieval import files
from retrieval.errors import UserError
from retrieval.runtime import hosts
from retrieval.runtime.lease import Lease
from retrieval.runtime.store import Store, all_of, is_url

CONFIG, RECORDS = "config.json", "stages"

# Folders of folders, each of which is whole when it has its manifest, and then stays as it is.
_SEALED = ("checkpoints", "refreshed")

# In paths of what is being written or deleted, by `files.atomic` and by Orbax.
_UNFINISHED = re.compile(r"(^|/)(\.tmp-|trash/|[^/]*\.orbax-checkpoint-tmp)")

# Seconds between two looks for a finished checkpoint.
_POLL = 0.5

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


@contextlib.contextmanager
def opened(url: str) -> Iterator["Mirror"]:
    """A work directory that this process alone writes to, with its config and its records.

    Raises:
      UserError: another run writes to it, it is the folder of something else, or the store does not answer.
    """
    mirror = Mirror(url)
    with mirror.lease.kept():
        mirror.open()
        yield mirror


@contextlib.contextmanager
def opened_by_all(url: str) -> Iterator["Copy"]:
    """The same for the hosts of a pod: the first has a `Mirror`, and each of the others a copy of its own.

    Raises:
      UserError: as `opened`.
    """
    with contextlib.ExitStack() as stack:
        copies: list[Copy] = []
        hosts.on_first(lambda: copies.append(stack.enter_context(opened(url))))
        if not copies:
            copies.append(Copy(url, f"host-{hosts.number()}"))
            copies[0].bring([CONFIG, RECORDS])
        yield copies[0]


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
        data, manifests = _apart(names)
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
        found = {}
        for name in self._here(tops):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                stat = (self.folder / name).stat()
                found[name] = stat.st_size, stat.st_mtime_ns
        return found

    @functools.cached_property
    def _there(self) -> set[str]:
        """The names of what the store has."""
        return self._store.names() - {files.LOCK}

    def _bring(self, tops: Collection[str], sums: Mapping[str, str]) -> None:
        stored = {name for name in _whole(self._there) if _is_below(name, tops)}
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
        found = []
        for top in tops:
            path = self.folder / top
            items = [path] if path.is_file() else [Path(at, file) for at, _, names in os.walk(path) for file in names]
            found += [item.relative_to(self.folder).as_posix() for item in items]
        return [name for name in found if not _UNFINISHED.search(name)]


class Mirror(Copy):
    """The same of a work directory that this process alone writes to, both here and on the store.

    What the folder has counts where it was the last that wrote to the store. Otherwise the store does. Another machine
    has gone on since, or this one has just come. Or the folder was put back as it was before, of which newer
    checkpoints tell.
    """

    def __init__(self, url: str):
        """Asks for the lease.

        Raises:
          UserError: another run has the folder or the store, or the store does not answer.
        """
        super().__init__(url, "write")
        files.lock(self.folder)
        self._state = self.folder / files.MIRROR
        state = files.read_json(self._state) if self._state.exists() else {}
        self._owner, whole = state.get("owner") or secrets.token_hex(8), state.get("whole", False)
        self._write_state(whole)
        self.lease = Lease(self._store, self._owner)
        self._counts = self.lease.before == self._owner and whole
        self._changing = threading.RLock()  # what the store has, which a `Follower` may change as well
        self._exchanged: dict[str, tuple[int, int]] = {}  # what the store has of other hosts, or for them
        self._damaged: set[str] = set()  # sealed folders, which are copied up again once they are made again

    def open(self) -> None:
        """Makes config and records the same here and there.

        Raises:
          UserError: the store has something else there, or does not answer.
        """
        if self._there and CONFIG not in self._there:
            raise UserError(f"{self.url} is not empty and not a work directory (no {CONFIG}): use another --workdir")
        self._counts = self._counts and _newest(self._there) <= _newest(self.checkpoints())
        if self._counts:
            all_of(self._put, self._here([CONFIG, RECORDS]))
        else:
            self._write_state(whole=False)
            self._bring([CONFIG, RECORDS], {})

    def bring(self, tops: Collection[str], sums: Mapping[str, str] | None = None) -> None:
        """As that of a copy. What this folder wrote itself stays as it is, and nothing else of what is here does."""
        if self._counts:
            # A checkpoint that the disk has damaged is put back: moved away, it would be deleted on the store as well.
            sealed = {_folder(name) for name in _whole(self._there) if _is_below(name, _SEALED)}
            damaged = [name for name in sealed if (self.folder / name).exists() and not self._is_good(name)]
            tops = [top for top in tops if not (self.folder / top).exists()] + damaged
        else:
            kept = (files.LOCK, files.MIRROR, CONFIG, RECORDS, *tops)
            for item in [item for item in self.folder.iterdir() if item.name not in kept]:
                files.remove(item)
        self._write_state(whole=False)
        self._bring(tops, sums or {})
        self._write_state(whole=True)
        self._counts = True

    def put(self, name: str) -> None:
        """Copies up the config or a record.

        Raises:
          UserError: it cannot be written, or another run has taken over.
        """
        self.lease.renew()
        self._put(name)

    def up(self, tops: Collection[str]) -> None:
        """Makes the store have of these what the folder has.

        Args:
          tops: files and folders by their paths; each is copied from a state that is not newer than that of the next.

        Raises:
          UserError: something cannot be written, or another run has taken over.
        """
        self.lease.renew()
        with self._changing:
            self._up(tops)

    def give(self, names: Iterable[str]) -> None:
        """As that of a copy, if this run still has the lease."""
        self.lease.renew()
        names = list(names)
        with self._changing:
            super().give(names)
            self._exchanged |= self.looks(names)

    def take(self, names: Collection[str]) -> None:
        """As that of a copy."""
        with self._changing:
            super().take(names)
            self._exchanged |= self.looks(names)

    @contextlib.contextmanager
    def following(self, tops: Collection[str]) -> Iterator["Follower"]:
        """Calls `up` for each checkpoint that is finished, in a thread, until the end of the block.

        Raises:
          UserError: as `up`.
        """
        follower, ended = Follower(self, tops), threading.Event()
        folders = {_folder(name) for name in self._there if _is_below(name, _SEALED)}
        self._damaged = {folder for folder in folders if not self._is_good(folder)}
        follower.wait()  # what was moved away here must not be there under the name of what comes
        thread = threading.Thread(target=follower.follow, args=[ended], daemon=True)
        thread.start()
        try:
            yield follower
        finally:
            ended.set()
            thread.join()

    def checkpoints(self) -> list[str]:
        """The names of those that are finished."""
        return sorted(name for name in _whole(self._here(["checkpoints"])) if name.endswith(f"/{files.MANIFEST}"))

    def _is_good(self, folder: str) -> bool:
        """Whether a sealed folder is here, and what was written."""
        try:
            files.verify_manifest(self.folder / folder, "it is made again")
        except (UserError, OSError):  # the second of one that is replaced at this moment
            return False
        return True

    def _up(self, tops: Collection[str]) -> None:
        mended = {folder for folder in self._damaged if self._is_good(folder)}
        sealed = {name for name in _whole(self._there) if _is_below(name, _SEALED) and not _is_below(name, mended)}
        here = _whole(self._here(tops))
        there = sealed | {name for name, look in self._exchanged.items() if self.looks([name]).get(name) == look}
        data, manifests = _apart(name for name in here if name not in there)
        all_of(self._put, data)
        for name in reversed(manifests):
            self._put(name)
        self._damaged -= mended
        kept = set(here)
        data, manifests = _apart(name for name in self._there if _is_below(name, tops) and name not in kept)
        for name in sorted(manifests):  # those of checkpoints before those of what they stand on
            self._delete(name)
        all_of(self._delete, data)

    def _put(self, name: str) -> None:
        if self._store.upload(name, self.folder / name):  # or else it is an old checkpoint, and was deleted meanwhile
            self._there.add(name)

    def _delete(self, name: str) -> None:
        self._store.delete(name)
        self._there.discard(name)
        self._exchanged.pop(name, None)

    def _write_state(self, whole: bool) -> None:
        files.write_json(self._state, {"owner": self._owner, "whole": whole})


class Follower:
    """What `Mirror.following` does, as those who write checkpoints see it."""

    def __init__(self, mirror: Mirror, tops: Collection[str]):
        self._mirror, self._tops = mirror, tops
        self._copied: list[str] | None = None
        self._failure: Exception | None = None
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raises what has become of copying in the background, if that was an error."""
        if self._failure:
            raise self._failure

    def wait(self) -> None:
        """Returns when all that is finished is on the store, or raises the `UserError` of what is not."""
        self.check()
        with self._lock:
            finished = self._mirror.checkpoints()
            if finished != self._copied:
                self._mirror.up(self._tops)
                self._copied = finished

    def follow(self, ended: threading.Event) -> None:
        """The thread's function."""
        while not ended.wait(_POLL):
            try:
                self.wait()
            except Exception as error:
                self._failure = error
                return


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


def _newest(names: Iterable[str]) -> int:
    """The step of the newest finished checkpoint among what a place has, -1 where there is none."""
    found = (re.fullmatch(rf"checkpoints/(\d+)/{re.escape(files.MANIFEST)}", name) for name in names)
    return max((int(match[1]) for match in found if match), default=-1)


def _is_below(name: str, tops: Iterable[str]) -> bool:
    return any(name == top or name.startswith(f"{top}/") for top in tops)


def _folder(name: str) -> str:
    """The sealed folder that a file is in."""
    return "/".join(name.split("/")[:2])


def _whole(names: Iterable[str]) -> list[str]:
    """Those of sealed folders only where these have their manifest."""
    names = list(names)
    known = set(names)
    return [name for name in names if not _is_below(name, _SEALED) or f"{_folder(name)}/{files.MANIFEST}" in known]


def _apart(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The names of data, and those of manifests."""
    names = list(names)
    manifests = [name for name in names if name.endswith(f"/{files.MANIFEST}")]
    return [name for name in names if name not in set(manifests)], manifests
