"""What may be asked: limits, and requests that are read or refused with a sentence."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request

from retrieval import terminal
from retrieval.errors import UserError, unknown_name

_JSON = "application/json"
_READ = ("id", "_id", "title", "section", "text", "url")  # of a record; one that is a hit has more, such as its score


class Limits(NamedTuple):
    """Of one request, and of all that wait.

    Attributes:
      k: hits of a list.
      characters: of a query.
      texts: of a call to encode or to rerank.
      body: bytes.
      seconds: until it is answered.
      waiting: requests that wait to be computed.
      batch: queries that are searched at once.
    """

    k: int = 100
    characters: int = 1000
    texts: int = 64
    body: int = 1 << 20
    seconds: float = 10.0
    waiting: int = 256
    batch: int = 32


class RefusedError(Exception):
    """A request that is not answered."""

    def __init__(self, status: int, message: str):
        """Args are the status of HTTP, and a sentence."""
        super().__init__(message)
        self.status = status


async def fields_of(request: Request, known: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The fields of a request: for POST of its body, a JSON object, otherwise of its address.

    Args:
      known: the fields that there are, with their defaults.

    Raises:
      RefusedError: the body is too long, or no JSON object.
      UserError: there is no such field, the address has one twice, or that of a POST has any.
    """
    if request.method == "POST" and (name := next(iter(request.query_params), "")):
        raise UserError(f"'{terminal.one_line(name)[:100]}' is in the address: a POST has its fields in its body")
    given = await _body(request, limits.body) if request.method == "POST" else _of_address(request)
    for name in given:
        if name not in known:
            raise unknown_name("field", name[:100], known)
    return {**known, **given}


def _of_address(request: Request) -> dict[str, str]:
    counts = Counter(name for name, _ in request.query_params.multi_items())
    if twice := next((name for name, count in counts.items() if count > 1), ""):
        raise UserError(
            f"'{terminal.one_line(twice)[:100]}' is there twice: leave one out; between names of a list are commas"
        )
    return dict(request.query_params)


async def _body(request: Request, longest: int) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:
        raise RefusedError(415, f"the body is '{kind}': send JSON, with the header content-type: {_JSON}")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > longest:
                raise RefusedError(413, f"the body has more than {longest} bytes: ask for less at a time")
    except ClientDisconnect as error:  # whom no answer reaches
        raise RefusedError(400, "the body was cut off") from error
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the body is not valid JSON ({error})"[:300]) from error
    if not isinstance(value, dict):
        raise UserError('the body is no JSON object: send {"query": "..."}')
    return value


def text(value: Any, name: str, longest: int) -> str:
    """A text that is not blank.

    Raises:
      UserError: it is none, or too long.
    """
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"'{name}' is missing or no text")
    if len(value) > longest:
        raise UserError(f"'{name}' has {len(value)} characters, and at most {longest} are read")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"'{name}' has half of a surrogate pair in it, which is no character") from error
    return value


def whole(value: Any, name: str, most: int) -> int:
    """A number from 1 to `most`; of an address, its digits.

    Raises:
      UserError: it is none.
    """
    is_written = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10
    number = int(value) if is_written else value
    if type(number) is not int or not 1 <= number <= most:
        raise UserError(f"'{name}' is {value!r}: a whole number from 1 to {most} is needed"[:300])
    return number


def switch(value: Any, name: str) -> bool:
    """A truth value; of an address, 1 or 0.

    Raises:
      UserError: it is none.
    """
    if value in ("0", "1") or isinstance(value, bool):
        return value in ("1", True)
    raise UserError(f"'{name}' is {value!r}: true or false is needed, in an address 1 or 0"[:300])


def names(value: Any, name: str, known: Mapping[str, Any]) -> tuple[str, ...]:
    """Some of the known names, or all; of an address, with commas between them.

    Raises:
      UserError: one is unknown, or it is no list.
    """
    given = value.split(",") if isinstance(value, str) and value else value or list(known)
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise UserError(f"'{name}' is no list of names; known: {', '.join(known)}")
    for each in given:
        if each not in known:
            raise unknown_name(name, each[:100], known)
    return tuple(each for each in known if each in given)


def texts(value: Any, name: str, limits: Limits) -> list[Any]:
    """Texts, or records with a 'text', such as hits.

    Raises:
      UserError: it is no list, one is blank or too long, or there are too many.
    """
    if not isinstance(value, list) or not value:
        raise UserError(f"'{name}' is missing or no list: send texts, or records with a 'text'")
    if len(value) > limits.texts:
        raise UserError(f"'{name}' has {len(value)} texts, and at most {limits.texts} are read at a time")
    for place, each in enumerate(value):
        parts = each if isinstance(each, dict) else {"text": each}
        for part in _READ:
            content = parts.get(part)
            if content or part == "text":
                text(str(content) if part in ("id", "_id") else content, f"{name}[{place}].{part}", limits.body)
    return value
