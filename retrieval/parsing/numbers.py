"""Numbers in files of others: ASCII, finite and of bounded length.

Python also takes 1_0, digits of other scripts, NaN, and integers that no float can hold.
"""

import re
from typing import Any

from retrieval.errors import UserError

_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*", re.ASCII)
_DECIMAL = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)
_LARGEST = (2 - 2**-23) * 2.0**127  # of float32


def integer(text: str) -> int:
    """The integer that a text is.

    Raises:
      ValueError: it is none, or has more than 18 digits.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def score(value: Any, name: str, at: str) -> float:
    """A number of 32 bits that was read at `at`, as a text or of JSON.

    Raises:
      UserError: it is none, or is not finite.
    """
    number: Any = float(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value
    if type(number) in (int, float) and abs(number) <= _LARGEST:
        return float(number)
    raise UserError(f"{at}: the {name} is {str(value)[:40]!r}; it must be a finite number of 32 bits")
