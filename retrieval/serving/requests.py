"""What may be asked: operations and their fields, each of which is read or refused with a sentence, and described."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from retrieval import terminal
from retrieval.errors import UserError, unknown_name

_JSON = "application/json"
_READ = ("id", "_id", "title", "section", "text", "url")  # of a record; a hit has more, such as its score


class Limits(NamedTuple):
    """Of one request, and of all that wait.

    Attributes:
      k: hits of a list.
      characters: of a query.
      texts: queries of a search, and texts of a call to encode or to rerank.
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


class Kind(NamedTuple):
    """A kind of value.

    Attributes:
      read: gives the value of a field by its name: in an address it is a text, in a body as JSON has it. It raises a
        UserError where it is of another kind.
      schema: the same in JSON Schema, as it is now.
    """

    read: Callable[[Any, str], Any]
    schema: Callable[[], dict[str, Any]]


class Field(NamedTuple):
    """A field of a request.

    Attributes:
      default: its value where a request does not have it.
      is_needed: whether every request has it.
    """

    name: str
    kind: Kind
    what: str
    default: Any = None
    is_needed: bool = False


class Operation(NamedTuple):
    """What programs may ask for by one method at one address.

    Attributes:
      what: it gives, in words.
      answer: takes the values of the fields by their names.
      gives: the name of its answer's schema; '' where that is no JSON.
      one_of: fields of which a request has exactly one. Where it has none, the first is missing.
      lacks: what a run may lack for it.
    """

    method: str
    path: str
    what: str
    answer: Callable[[dict[str, Any]], Awaitable[Response]]
    gives: str = ""
    fields: tuple[Field, ...] = ()
    one_of: tuple[str, ...] = ()
    lacks: str = ""

    async def read(self, request: Request, longest: int) -> dict[str, Any]:
        """The values of a request's fields: for POST of its body, a JSON object, otherwise of its address.

        Args:
          longest: bytes of a body.

        Raises:
          RefusedError: the body is too long, or no JSON object.
          UserError: a value is of another kind, there is no such field, the address has one twice, or that of a POST
            has any.
        """
        if not self.fields:
            return {}  # whatever a monitor adds to the address
        fields, is_post = {field.name: field for field in self.fields}, self.method == "POST"
        if is_post and (name := next(iter(request.query_params), "")):
            raise UserError(f"'{terminal.one_line(name)[:100]}' is in the address: a POST has its fields in its body")
        given = await _body(request, longest) if is_post else _of_address(request)
        for name in given:
            if name not in fields:
                raise unknown_name("field", name[:100], fields)
        chosen = [name for name in self.one_of if name in given]
        if len(chosen) > 1:
            raise UserError(f"'{chosen[0]}' and '{chosen[1]}' are both there: leave one out")
        needed = {name for name, field in fields.items() if field.is_needed} | set(() if chosen else self.one_of[:1])
        return {
            name: field.kind.read(given.get(name), name) if name in given or name in needed else field.default
            for name, field in fields.items()
        }


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


def text(longest: int) -> Kind:
    """A text that is not blank, of so many characters at most."""

    def read(value: Any, name: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"'{name}' is missing or no text")
        if len(value) > longest:
            raise UserError(f"'{name}' has {len(value)} characters, and at most {longest} are read")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"'{name}' has half of a surrogate pair in it, which is no character") from error
        return value

    return Kind(read, lambda: {"type": "string", "pattern": r"\S", "maxLength": longest})


def whole(most: int) -> Kind:
    """A number from 1 to `most`; in an address, its digits."""

    def read(value: Any, name: str) -> int:
        is_written = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10
        number = int(value) if is_written else value
        if type(number) is not int or not 1 <= number <= most:
            raise UserError(f"'{name}' is {value!r}: a whole number from 1 to {most} is needed"[:300])
        return number

    return Kind(read, lambda: {"type": "integer", "minimum": 1, "maximum": most})


def switch() -> Kind:
    """A truth value; in an address also 1 or 0."""

    def read(value: Any, name: str) -> bool:
        if value in ("0", "1", "false", "true") or isinstance(value, bool):
            return value in ("1", "true", True)
        raise UserError(f"'{name}' is {value!r}: true or false is needed, in an address 1 or 0"[:300])

    return Kind(read, lambda: {"type": "boolean"})


def name_of(known: Collection[str]) -> Kind:
    """One of some names."""

    def read(value: Any, name: str) -> str:
        if value not in list(known):
            raise unknown_name(name, str(value)[:100], known)
        return value

    return Kind(read, lambda: {"type": "string", "enum": list(known)})


def names(known: Callable[[], Collection[str]]) -> Kind:
    """Some of the names that are known now, or all; in an address with commas between them."""

    def read(value: Any, name: str) -> tuple[str, ...]:
        given = value.split(",") if isinstance(value, str) and value else value or list(known())
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise UserError(f"'{name}' is no list of names; known: {', '.join(known())}")
        for each in given:
            if each not in known():
                raise unknown_name(name, each[:100], known())
        return tuple(each for each in known() if each in given)

    return Kind(read, lambda: {"type": "array", "items": {"type": "string", "enum": list(known())}})


def document(longest: int) -> Kind:
    """A text, or a record with a 'text', such as a hit."""
    of_text = text(longest)

    def read(value: Any, name: str) -> Any:
        parts = value if isinstance(value, dict) else {"text": value}
        for part in _READ:
            content = parts.get(part)
            if content or part == "text":
                of_text.read(str(content) if part in ("id", "_id") else content, f"{name}.{part}")
        return value

    return Kind(read, lambda: {"anyOf": [of_text.schema(), {"$ref": "#/components/schemas/Document"}]})


def several(kind: Kind, most: int, needed: str) -> Kind:
    """A list of at least one and at most so many; `needed` says of what."""

    def read(value: Any, name: str) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise UserError(f"'{name}' is missing or no list: send {needed}")
        if len(value) > most:
            raise UserError(f"'{name}' has {len(value)} texts, and at most {most} are read at a time")
        return [kind.read(each, f"{name}[{place}]") for place, each in enumerate(value)]

    schema = {"type": "array", "minItems": 1, "maxItems": most}
    return Kind(read, lambda: schema | {"items": kind.schema()})
