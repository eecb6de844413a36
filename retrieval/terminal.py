"""Text of unknown origin, made safe to show: nothing in it moves the cursor, sets a colour or turns a line around."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator

# Control characters but for tab and line feed, what changes the direction of writing or begins a line in some other
# way, and halves of surrogate pairs, which cannot be printed at all.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` with the escape sequence of Python in place of every character that a terminal may act on."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """`printable` text on one line: every run of white space is a blank."""
    return printable(" ".join(text.split()))


@contextlib.contextmanager
def while_read() -> Iterator[None]:
    """What prints ends quietly when the reader of standard output has seen enough, as `head` has."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python would say it at the end
