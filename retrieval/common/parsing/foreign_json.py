"""JSON of others: no number that a float cannot hold, no NaN, and no nesting that Python cannot follow."""

import json
import math
from typing import Any

from retrieval.common.errors import UserError

_MOST_DIGITS = 300  # of an integer: Python refuses to read some thousands, and no float holds more than 308


class BadNumberError(Exception):
    """JSON has a number that is none here. It is no ValueError, after which a longer text might be read."""


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise BadNumberError(f"an integer of {len(text)} digits")
    return int(text)


def _decimal(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise BadNumberError(f"{text[:40]} is out of range")
    return value


def _no_number(text: str) -> float:
    raise BadNumberError(f"{text} is no number of JSON")


# What `json.loads` and `json.JSONDecoder` take.
NUMBERS: dict[str, Any] = {"parse_int": _integer, "parse_float": _decimal, "parse_constant": _no_number}
_DECODER = json.JSONDecoder(**NUMBERS)  # `json.loads` would make one for every line
ERRORS = (ValueError, RecursionError, BadNumberError)  # what these may then raise


def parse(text: str | bytes, at: str, needed: str = "one object a line is needed") -> Any:
    """The value of a text that was read at `at`.

    Args:
      needed: what belongs there, in words.

    Raises:
      UserError: it is no JSON, or has a number that is none.
    """
    try:
        return _DECODER.decode(text) if isinstance(text, str) else json.loads(text, **NUMBERS)
    except ERRORS as error:
        raise UserError(f"{at}: not valid JSON ({error}); {needed}") from error
