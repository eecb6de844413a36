"""What may be asked: operations and their fields, each of which is read or refused with a sentence, and described."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from retrieval import terminal
from retrieval.errors import UserError, unknown_name

_JSON = "application/json"
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}


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


class Field(NamedTuple):
    """A field of a request.

    Attributes:
      schema: what it may be, in as much of JSON Schema as `_read` knows.
      default: its value where a request does not have it.
      is_needed: whether every request has it.
    """

    name: str
    schema: dict[str, Any]
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
        given: dict[str, Any] = await _body(request, longest) if is_post else _of_address(request)
        for name in given:
            if name not in fields:
                raise unknown_name("field", name[:100], fields)
        if not is_post:
            given = {name: _typed(fields[name].schema, value) for name, value in given.items()}
        chosen = [name for name in self.one_of if name in given]
        if len(chosen) > 1:
            raise UserError(f"'{chosen[0]}' and '{chosen[1]}' are both there: leave one out")
        needed = {name for name, field in fields.items() if field.is_needed} | set(() if chosen else self.one_of[:1])
        return {
            name: _read(field.schema, given.get(name), name) if name in given or name in needed else field.default
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


def text(longest: int) -> dict[str, Any]:
    """A text that is not blank, of so many characters at most."""
    return {"type": "string", "pattern": r"\S", "maxLength": longest}


def document(longest: int) -> dict[str, Any]:
    """A text, or a record with a 'text', such as a hit."""
    return {"anyOf": [text(longest), {"$ref": "#/components/schemas/Document"}]}


def several(of: dict[str, Any], most: int) -> dict[str, Any]:
    """A list of at least one and at most so many."""
    return {"type": "array", "minItems": 1, "maxItems": most, "items": of}


def _typed(schema: dict[str, Any], value: str) -> Any:
    """A value of an address as JSON has it; what is none of its kind stays a text."""
    if schema["type"] == "array":
        return value.split(",")
    is_whole = schema["type"] == "integer" and value.isascii() and value.isdigit() and len(value) < 10
    return int(value) if is_whole else _SWITCHES.get(value, value) if schema["type"] == "boolean" else value


def _read(schema: dict[str, Any], value: Any, name: str) -> Any:
    """A value, if it is as its schema says.

    Raises:
      UserError: it is not.
    """
    if "anyOf" in schema:  # a text, or a record, whose other parts are checked where it is used
        is_record = isinstance(value, dict)
        _read(schema["anyOf"][0], value.get("text") if is_record else value, f"{name}.text")
    elif "enum" in schema:
        if value not in schema["enum"]:
            raise unknown_name(name, str(value)[:100], schema["enum"])
    elif schema["type"] == "string":
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"'{name}' is missing or no text")
        if len(value) > schema["maxLength"]:
            raise UserError(f"'{name}' has {len(value)} characters, and at most {schema['maxLength']} are read")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise UserError(f"'{name}' has half of a surrogate pair in it, which is no character")
    elif schema["type"] == "integer":
        if type(value) is not int or not schema["minimum"] <= value <= schema["maximum"]:
            needed = f"from {schema['minimum']} to {schema['maximum']}"
            raise UserError(f"'{name}' is {value!r}: a whole number {needed} is needed"[:300])
    elif schema["type"] == "boolean":
        if not isinstance(value, bool):
            raise UserError(f"'{name}' is {value!r}: true or false is needed, in an address 1 or 0"[:300])
    elif not isinstance(value, list) or len(value) < schema.get("minItems", 0):
        raise UserError(f"'{name}' is missing or no list: send a list of at least one")
    elif len(value) > schema.get("maxItems", len(value)):
        raise UserError(f"'{name}' has {len(value)} texts, and at most {schema['maxItems']} are read at a time")
    else:
        for place, each in enumerate(value):
            _read(schema["items"], each, f"{name}[{place}]")
    return value
