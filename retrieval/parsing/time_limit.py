"""A limit of time for what may never end: a regular expression of somebody else, or a document."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

from retrieval.errors import UserError

# Seconds until it is raised again: Python drops what is raised in a callback of its garbage collector, and libraries
# may suppress what they do not know.
_AGAIN = 0.1


class TooSlowError(UserError):
    """What was begun took longer than its limit."""


@contextlib.contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raises `TooSlowError` after so many seconds, also in the middle of a search: `re` lets signals through.

    Only the main thread can be stopped so: in another one there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_) -> None:
        if not isinstance(sys.exception(), TooSlowError):  # on its way already
            raise TooSlowError(message)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
