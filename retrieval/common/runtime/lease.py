"""One run at a time writes to a folder on a store: an object says which, and is renewed as long as that run lives.

The store numbers what it has been given, and puts an object in the place of another only if that is still the one that
was seen. So of two that take over at once from a run that died one does, and the dead run finds its own gone.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator

from retrieval.common.errors import UserError
from retrieval.common.files import LOCK
from retrieval.common.runtime import ending
from retrieval.common.runtime.store import Store, repeated

_log = logging.getLogger(__name__)

# Seconds. Whoever finds an object that has not changed for so long takes its run for dead.
_VALID, _RENEWED_AFTER = 60.0, 15.0

# Seconds between two looks at the object of another run.
_A_MOMENT = 2.0


class TakenError(UserError):
    """Another run writes to the folder by now."""


class Lease:
    """Taken when it is made."""

    def __init__(self, store: Store):
        """Takes it.

        Raises:
          UserError: another run has it, and is alive.
        """
        self._store, self._writing = store, threading.Lock()
        self._tag = store.tag(LOCK)
        if self._tag:
            self._wait()
        if not self._write():
            self._refuse()

    def renew(self) -> None:
        """Makes it valid from now on.

        Raises:
          TakenError: another run has taken it.
          UserError: the store does not answer.
        """
        with self._writing:
            if not self._write():
                raise TakenError(f"{self._store.url}: another run has taken it over; this one ends")

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renews it in a thread, and gives it back in the end. Where it cannot be renewed, the process ends."""
        try:
            with repeated(self._keep, _RENEWED_AFTER):
                yield
        finally:
            with contextlib.suppress(UserError):  # it runs out by itself
                self.renew()  # another's is not deleted
                self._store.delete(LOCK)

    def _write(self) -> bool:
        """Whether the object is this run's from now on."""
        began, content = time.monotonic(), f"process {os.getpid()} on {socket.gethostname()}, {time.time()}".encode()
        written = self._store.replace(LOCK, content, self._tag)
        if not written and (tag := self._store.tag(LOCK)) and self._store.read(LOCK) == content:
            written = tag  # its answer was lost, and the client asked again
        if written:
            self._tag, self._renewed = written, began
        return bool(written)

    def _wait(self) -> None:
        """Returns when the run of the object has given it back, or has not renewed it for too long."""
        end = time.monotonic() + _VALID
        _log.info("%s: another run has written to it; waiting for at most %.0f s", self._store.url, _VALID)
        while self._tag and time.monotonic() < end:
            time.sleep(_A_MOMENT)
            if (now := self._store.tag(LOCK)) not in (None, self._tag):
                self._refuse()
            self._tag = now

    def _refuse(self) -> None:
        who = (self._store.read(LOCK) or b"").decode(errors="replace").partition(",")[0]
        remedy = "wait for it, end it, or use another --workdir"
        raise UserError(f"{self._store.url}: another run writes to it ({who}); {remedy}")

    def _keep(self) -> None:
        try:
            self.renew()
        except UserError as error:
            if isinstance(error, TakenError) or time.monotonic() > self._renewed + _VALID:
                ending.end(2, f"error: {error}")
