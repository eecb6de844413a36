"""A limit of time for what may never end: a regular expression of somebody else, or a document."""

import contextlib
import signal
import threading
from collections.abc import Iterator

from retrieval.errors import UserError


class TooSlowError(UserError):
    """What was begun took longer than its limit."""


@contextlib.contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raises `TooSlowError` after so many seconds, also in the middle of a search: `re` lets signals through.

    It raises again every second, for libraries that suppress what they do not know. Only the main thread can be stopped
    so: in another one there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_) -> None:
        raise TooSlowError(message)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
