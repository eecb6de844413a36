"""One run at a time writes to a folder on a store: an object says which, and is renewed as long as that run lives.

The object has a number, and a store makes one only if it is not there. Of two that take over at once from a run that
died, one makes the next number. The old run finds its own gone.
"""

import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator

from retrieval.errors import UserError
from retrieval.files import LOCK
from retrieval.runtime import ending
from retrieval.runtime.store import Store

_log = logging.getLogger(__name__)

# Seconds. Whoever finds an object that has not changed for so long takes its run for dead.
_VALID, _RENEWED_AFTER = 60.0, 15.0

# Seconds between two looks at the object of another run.
_A_MOMENT = 2.0

_NAME = re.compile(rf"{re.escape(LOCK)}-(\d+)")


class TakenError(UserError):
    """Another run writes to the folder by now."""


def is_lock(name: str) -> bool:
    """Whether this is the name of such an object."""
    return bool(_NAME.fullmatch(name))


class Lease:
    """Taken when it is made."""

    def __init__(self, store: Store):
        """Takes it.

        Raises:
          UserError: another run has it, and is alive.
        """
        self._store = store
        before = sorted(filter(is_lock, store.names()))
        number = 1 + int(before[-1].rpartition("-")[2]) if before else 1
        if before:
            self._wait(before[-1])
        self._name = f"{LOCK}-{number:06d}"
        if not store.create(self._name, self._content()):
            self._refuse(self._name)
        self._renewed = time.monotonic()
        for name in before:
            store.delete(name)

    def renew(self) -> None:
        """Makes it valid from now on.

        Raises:
          TakenError: another run has taken it.
          UserError: the store does not answer.
        """
        if self._store.read(self._name) is None:
            raise TakenError(f"{self._store.url}: another run has taken it over; this one ends")
        self._store.write(self._name, self._content())
        self._renewed = time.monotonic()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renews it in a thread, and gives it back in the end. Where it cannot be renewed, the process ends."""
        ended = threading.Event()
        thread = threading.Thread(target=self._keep, args=[ended], daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with contextlib.suppress(UserError):  # it runs out by itself
                self._store.delete(self._name)

    def _wait(self, name: str) -> None:
        """Returns when the run of an object has given it back, or has not renewed it for too long."""
        first, end = self._store.read(name), time.monotonic() + _VALID
        _log.info("%s: another run has written to it; waiting for at most %.0f s", self._store.url, _VALID)
        while time.monotonic() < end and (now := self._store.read(name)):
            if now != first:
                self._refuse(name)
            time.sleep(_A_MOMENT)

    def _refuse(self, name: str) -> None:
        who = (self._store.read(name) or b"").decode(errors="replace").partition(",")[0]
        remedy = "wait for it, end it, or use another --workdir"
        raise UserError(f"{self._store.url}: another run writes to it ({who}); {remedy}")

    def _keep(self, ended: threading.Event) -> None:
        while not ended.wait(_RENEWED_AFTER):
            try:
                self.renew()
            except UserError as error:
                if isinstance(error, TakenError) or time.monotonic() > self._renewed + _VALID:
                    ending.end(2, f"error: {error}")

    def _content(self) -> bytes:
        return f"process {os.getpid()} on {socket.gethostname()}, {time.time()}".encode()
