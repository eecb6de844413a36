"""What people see of a run: text of unknown origin, made safe to show, and how far long work is.

Nothing in a safe text moves the cursor, sets a colour or turns a line around.
"""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

_log = logging.getLogger(__name__)

_SECONDS = 60  # between two lines of the log about the same work

# Control characters but for tab and line feed, what changes the direction of writing or begins a line in some other
# way, and halves of surrogate pairs, which cannot be printed at all.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` with the escape sequence of Python in place of every character that a terminal may act on."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """`printable` text on one line: every run of white space is a blank."""
    return printable(" ".join(text.split()))


def set_up_logging() -> None:
    """Sends our log to standard error, and keeps from it what other libraries say of errors that are reported here."""
    handler = _Handler()
    handler.setFormatter(Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("retrieval")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    # Orbax logs with a traceback what it raises, too.
    logging.getLogger("absl").addFilter(lambda record: record.levelno < logging.ERROR or "orbax" not in record.pathname)
    sys.unraisablehook = _report_dropped


def _report_dropped(dropped: "sys.UnraisableHookArgs") -> None:
    """What Python cannot raise, unless it comes again, or comes after the error that has ended a save."""
    error = dropped.exc_value
    if not isinstance(error, KeyboardInterrupt) and str(error) != "Event loop is closed":
        sys.__unraisablehook__(dropped)


class _Handler(logging.StreamHandler):
    """Messages stand on lines of their own: a bar of progress gives way, and comes again below."""

    def emit(self, record: logging.LogRecord) -> None:
        bar: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)  # not imported for this alone
        with bar.external_write_mode(self.stream) if getattr(bar, "_instances", ()) else contextlib.nullcontext():
            super().emit(record)


class Formatter(logging.Formatter):
    """Messages may quote the data."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextlib.contextmanager
def while_read() -> Iterator[None]:
    """What prints ends quietly when the reader of standard output has seen enough, as `head` has."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python would say it at the end


def progress(items: Iterable | None = None, **options: Any) -> Any:
    """A bar of progress on a terminal; where standard error is a file or a pipe, a line of the log every minute.

    Args:
      options: of tqdm, such as `desc` and `total`.
    """
    import tqdm  # late: what `runtime.hosts` says to it in the environment counts until then

    if sys.stderr.isatty():
        return tqdm.tqdm(items, mininterval=2, **options)
    lines = {"mininterval": _SECONDS, "maxinterval": _SECONDS, "delay": _SECONDS, "ascii": True, "ncols": 0}
    return tqdm.tqdm(items, file=_Lines(), **lines, **options)


class _Lines:
    """A file for tqdm, whose states are lines of the log."""

    def write(self, text: str) -> None:
        if state := text.strip():
            _log.info("%s", state)

    def flush(self) -> None:
        """Nothing is held back."""
