"""A limit of time for what may never end: a regular expression of somebody else."""

import contextlib
import signal
from collections.abc import Iterator

from retrieval.errors import UserError


class TooSlowError(UserError):
    """What was begun took longer than its limit."""


@contextlib.contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raises `TooSlowError` after so many seconds, also in the middle of a search: `re` lets signals through.

    To be used in the main thread.
    """

    def stop(*_) -> None:
        raise TooSlowError(message)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
