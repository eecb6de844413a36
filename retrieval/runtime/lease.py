"""One run at a time writes to a folder on a store: an object says which, and until when.

A store has no locks, and epath no writing on a condition. So whoever takes the object looks after a moment, and then
again and again, whether it is still theirs. Of two that take it at the same time, one ends.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from retrieval.errors import UserError
from retrieval.files import LOCK
from retrieval.runtime import ending
from retrieval.runtime.store import Store

_log = logging.getLogger(__name__)

# Seconds. The clocks of two machines must not differ by more than what lies between.
_VALID, _RENEWED_AFTER = 60.0, 15.0

# Seconds that somebody who takes it at the same time needs for that.
_A_MOMENT = 2.0


class TakenError(UserError):
    """Another run writes to the folder by now."""


class Lease:
    """Taken when it is made.

    Attributes:
      before: the owner that the object named then, or None.
    """

    def __init__(self, store: Store, owner: str):
        """Takes it.

        Args:
          owner: a name that nobody else has; who comes back under it need not wait.

        Raises:
          UserError: another one has it, and is alive.
        """
        self._store, self._owner = store, owner
        self.before, who, until = self._read()
        if self.before != owner:
            if until > time.time():
                self._wait(who, until)
            self._write(_VALID)
            time.sleep(_A_MOMENT)
        self.renew()

    def renew(self) -> None:
        """Makes it valid from now on.

        Raises:
          TakenError: another one has taken it.
          UserError: the store does not answer.
        """
        owner, who, _ = self._read()
        if owner not in (self._owner, None):
            raise TakenError(f"{self._store.url}: another run has taken it over ({who}); this one ends")
        self._write(_VALID)

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
                if self._read()[0] == self._owner:
                    self._write(0)

    def _wait(self, who: Any, until: float) -> None:
        """Returns when the lease of another one has run out; one that lives renews it before."""
        _log.info("%s: %s has written to it; waiting for at most %.0f s", self._store.url, who, until - time.time())
        while time.time() < until:
            time.sleep(_A_MOMENT)
            now = self._read()[2]
            if now > until:
                remedy = "wait for it, end it, or use another --workdir"
                raise UserError(f"{self._store.url}: another run writes to it ({who}); {remedy}")
            until = now

    def _keep(self, ended: threading.Event) -> None:
        while not ended.wait(_RENEWED_AFTER):
            try:
                self.renew()
            except UserError as error:
                if isinstance(error, TakenError) or time.time() > self._until:
                    ending.end(2, f"error: {error}")

    def _write(self, seconds: float) -> None:
        until = time.time() + seconds
        who = f"process {os.getpid()} on {socket.gethostname()}"
        self._store.write(LOCK, json.dumps({"owner": self._owner, "who": who, "until": until}).encode())
        self._until = until

    def _read(self) -> tuple[str | None, Any, float]:
        """Owner, process, and the time until which it is valid; None of one that is not there or damaged."""
        try:
            value = json.loads(self._store.read(LOCK) or b"{}")
            return value.get("owner"), value.get("who"), float(value.get("until", 0))
        except (ValueError, TypeError, AttributeError):
            return None, None, 0.0
