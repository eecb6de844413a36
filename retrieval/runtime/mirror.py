"""Work directories on an object store: a run works in a local folder, and what is finished there is copied up.

The store cannot rename. So what is there counts when the file that says so is there: the record of a stage, or the
`manifest.json` of a checkpoint. That file is copied last and deleted first.
"""

import contextlib
import re
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping

from retrieval import files
from retrieval.errors import UserError
from retrieval.runtime import hosts
from retrieval.runtime.lease import Lease
from retrieval.runtime.store import all_of
from retrieval.runtime.store_copy import CONFIG, RECORDS, SEALED, Copy, apart, complete, is_below, sealed_folder

# Seconds between two looks for a finished checkpoint.
_POLL = 0.5


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
def opened_by_all(url: str) -> Iterator[Copy]:
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
        """As that of a copy. What this folder wrote itself stays as it is, and nothing else of what is here does.

        Checkpoints are the exception: those that are on the store and not here, whole, are put back.
        """
        if self._counts:
            # A checkpoint that the disk has damaged or lost is put back: without it here, it would be deleted on the
            # store as well. One that the run has dropped, and the store has not yet, it drops again.
            stored = complete(name for name in self._there if is_below(name, tops))
            sealed = {sealed_folder(name) for name in stored if is_below(name, SEALED)}
            lost = [name for name in sealed if not self._is_good(name)]
            tops = [top for top in tops if not (self.folder / top).exists()] + lost
        else:
            known = (files.LOCK, files.MIRROR, CONFIG, RECORDS, *tops)
            for item in [item for item in self.folder.iterdir() if item.name not in known]:
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
        folders = {sealed_folder(name) for name in self._there if is_below(name, SEALED)}
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
        return sorted(name for name in complete(self._here(["checkpoints"])) if name.endswith(f"/{files.MANIFEST}"))

    def _is_good(self, folder: str) -> bool:
        """Whether a sealed folder is here, and what was written."""
        try:
            files.verify_manifest(self.folder / folder, "it is made again")
        except (UserError, OSError):  # the second of one that is replaced at this moment
            return False
        return True

    def _up(self, tops: Collection[str]) -> None:
        mended = {folder for folder in self._damaged if self._is_good(folder)}
        sealed = {name for name in complete(self._there) if is_below(name, SEALED) and not is_below(name, mended)}
        here = complete(self._here(tops))
        stored = sealed | {name for name, look in self._exchanged.items() if self.looks([name]).get(name) == look}
        data, manifests = apart(name for name in here if name not in stored)
        all_of(self._put, data)
        for name in reversed(manifests):
            self._put(name)
        self._damaged -= mended
        present = set(here)
        data, manifests = apart(name for name in self._there if is_below(name, tops) and name not in present)
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


def _newest(names: Iterable[str]) -> int:
    """The step of the newest finished checkpoint among what a place has, -1 where there is none."""
    matches = (re.fullmatch(rf"checkpoints/(\d+)/{re.escape(files.MANIFEST)}", name) for name in names)
    return max((int(match[1]) for match in matches if match), default=-1)
