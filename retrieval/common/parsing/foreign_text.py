"""Texts of others: HTML entities, regular expressions that are answers, and a limit of time for what may never end."""

import contextlib
import html
import re
import signal
import sys
import threading
import unicodedata
import warnings
from collections.abc import Iterator

from retrieval.common.errors import UserError

# No character has so many digits, and Python refuses to read a number of some thousands.
_ENDLESS = re.compile(r"&#[0-9]{100,};?")
_LONGEST = 200  # characters in a message
# Seconds until it is raised again: Python drops what is raised in a callback of its garbage collector, and libraries
# may suppress what they do not know.
_AGAIN = 0.1


def unescape(text: str) -> str:
    """`html.unescape` for any text: a number too large for a character gives U+FFFD, however long it is."""
    return html.unescape(_ENDLESS.sub("\ufffd", text)) if "&" in text else text


def compiled(pattern: str, at: str, decomposed: bool = True) -> re.Pattern:
    """A regular expression for texts in NFD, or for texts as they are; upper and lower case are the same to it.

    Args:
      at: where it stands, for errors.
      decomposed: whether it is brought into NFD, for texts in NFD.

    Raises:
      UserError: it is no regular expression.
    """
    bare = _bare(pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a later Python might read '[[' otherwise
            return re.compile(unicodedata.normalize("NFD", bare) if decomposed else bare, re.IGNORECASE | re.MULTILINE)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{at}: '{shown(pattern)}' is no regular expression ({error}); mend it, or drop it") from error


def shown(pattern: str) -> str:
    """The beginning of a regular expression, for messages."""
    return pattern if len(pattern) <= _LONGEST else f"{pattern[:_LONGEST]} ..."


def _bare(pattern: str) -> str:
    r"""The same without escapes of letters that NFD takes apart. Of `\é` it would make `\e`, an error, and a mark."""
    return re.sub(r"(\\[\x00-\x7f])|\\([^\x00-\x7f])", lambda match: match[1] or match[2], pattern)


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
