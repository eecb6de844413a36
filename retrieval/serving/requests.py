"""What may be asked: operations and their fields, each of which is read or refused with a sentence, and described."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request

from retrieval.common import terminal
from retrieval.common.errors import UserError, unknown_name
from retrieval.common.parsing import foreign_json
from retrieval.serving.responses import EMPTY, MANY, FieldError, RefusedError

Values = dict[str, Any]
"""The values of a request's fields."""

OTHERS = "others"  # JSON of another server's protocol

_JSON = "application/json"
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}


class Limits(NamedTuple):
    """Of one request, and of all that wait.

    Attributes:
      k: hits of a list.
      truncate: whether what is too long to be embedded is cut where a protocol does not ask; otherwise it is refused.
      characters: of a query.
      texts: queries of a search, and texts of a call to encode or to rerank.
      body: bytes.
      seconds: until it is answered.
      waiting: requests that wait to be computed.
      batch: queries that are searched at once.
      inputs: texts of a call of a protocol of others, to embed or to rerank.
      inputs_tokens, inputs_body, inputs_seconds: of such a call: tokens of all its texts, bytes, and seconds until it
        is answered.
    """

    k: int = 100
    truncate: bool = True
    characters: int = 1000
    texts: int = 64
    body: int = 1 << 20
    seconds: float = 10.0
    waiting: int = 256
    batch: int = 32
    inputs: int = 2048
    inputs_tokens: int = 300_000
    inputs_body: int = 8 << 20
    inputs_seconds: float = 60.0


class Field(NamedTuple):
    """A field of a request.

    Attributes:
      schema: what it may be, in as much of JSON Schema as `_check` knows.
      default: its value where a request does not have it.
      is_needed: whether every request has it.
      remedy: what to do where it has numbers in place of texts.
    """

    name: str
    schema: dict[str, Any]
    what: str
    default: Any = None
    is_needed: bool = False
    remedy: str = ""


class Operation(NamedTuple):
    """What programs may ask for by one method at one address.

    Attributes:
      what: it gives, in words.
      answer: takes the engine, and the values of the fields by their names; gives what `responses.response` takes.
      response: the name of its schema, or OTHERS; '' where that is no JSON.
      one_of: fields of which a request has exactly one. Where it has none, the first is missing.
      is_foreign: whether it is of a protocol of others: fields that are not known are passed over, as null is, and the
        address may have fields of text, too.
      example: the fields of a request, for the description.
    """

    method: str
    path: str
    what: str
    answer: Callable[[Any, Values], Awaitable[Any]]
    response: str = ""
    fields: tuple[Field, ...] = ()
    one_of: tuple[str, ...] = ()
    is_foreign: bool = False
    example: Values | None = None

    async def read(self, request: Request, limits: Limits) -> Values:
        """The values of a request's fields: for POST of its body, a JSON object, otherwise of its address.

        Raises:
          RefusedError: the body is too long, or no JSON object.
          UserError: a value is of another kind, there is no such field, the address has one twice, or that of a POST
            has any.
        """
        if not self.fields:
            return {}  # whatever a monitor adds to the address
        fields, is_post = {field.name: field for field in self.fields}, self.method == "POST"
        address = request.query_params
        if is_post and not self.is_foreign and address:
            raise UserError(f"'{_shown(next(iter(address)))}' is in the address: a POST has its fields in its body")
        if not is_post and (twice := [name for name in address if len(address.getlist(name)) > 1]):
            raise UserError(f"'{_shown(twice[0])}' is there twice: leave one out; between names of a list are commas")
        of_address = {**address, **request.path_params}
        values: dict[str, Any] = of_address
        if is_post:
            values = await _body(request, limits.inputs_body if self.is_foreign else limits.body)
        if self.is_foreign:  # some clients let people choose the address alone
            both = (of_address | values).items()
            values = {name: value for name, value in both if name in fields and value is not None}
        for name in values:
            if name not in fields:
                raise unknown_name("field", name[:100], fields)
        if not is_post:
            values = {name: _typed(fields[name].schema, value) for name, value in values.items()}
        chosen = [name for name in self.one_of if name in values]
        if len(chosen) > 1:
            raise UserError(f"'{chosen[0]}' and '{chosen[1]}' are both there: leave one out")
        needed = {name for name, field in fields.items() if field.is_needed} | set(() if chosen else self.one_of[:1])
        return {
            name: _checked(field, values.get(name)) if name in values or name in needed else field.default
            for name, field in fields.items()
        }


def _shown(name: str) -> str:
    return terminal.one_line(name)[:100]


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
    value = foreign_json.parse(bytes(body), "the body", 'send {"query": "..."}')
    if not isinstance(value, dict):
        raise UserError('the body is no JSON object: send {"query": "..."}')
    return value


SWITCH: dict[str, Any] = {"type": "boolean"}


def whole(least: int, most: int = 1 << 30) -> dict[str, Any]:
    """A whole number."""
    return {"type": "integer", "minimum": least, "maximum": most}


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


def _checked(field: Field, value: Any) -> Any:
    """A value, if it is as the schema of its field says."""
    try:
        _check(field.schema, value, field.name)
    except FieldError as error:
        kind = EMPTY if value in ("", []) else error.kind
        raise FieldError(f"{error}{field.remedy if _are_numbers(value) else ''}", kind, field.name) from error
    return value


def _are_numbers(value: Any) -> bool:
    """Whether a list, or the first of its lists, has a number."""
    return isinstance(value, list) and any(type(each) in (int, float) or _are_numbers(each) for each in value[:1])


def _check(schema: dict[str, Any], value: Any, name: str) -> None:
    if "anyOf" in schema:
        one, other = schema["anyOf"]
        if "$ref" in other:  # a text, or a record, whose other parts are checked where it is used
            is_record = isinstance(value, dict)
            _check(one, value.get("text") if is_record else value, f"{name}.text" if is_record else name)
        else:
            _check(other if isinstance(value, list) else one, value, name)
    elif "enum" in schema:
        if value not in schema["enum"]:
            raise FieldError(str(unknown_name(name, str(value)[:100], schema["enum"])))
    elif schema["type"] == "string":
        if not isinstance(value, str) or not value.strip():
            raise FieldError(f"'{name}' is missing or no text")
        if len(value) > schema["maxLength"]:
            raise FieldError(f"'{name}' has {len(value)} characters, and at most {schema['maxLength']} are read")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise FieldError(f"'{name}' has half of a surrogate pair in it, which is no character")
    elif schema["type"] == "integer":
        if type(value) is not int or not schema["minimum"] <= value <= schema["maximum"]:
            needed = f"from {schema['minimum']} to {schema['maximum']}"
            raise FieldError(f"'{name}' is {value!r}: a whole number {needed} is needed"[:300])
    elif schema["type"] == "boolean":
        if not isinstance(value, bool):
            raise FieldError(f"'{name}' is {value!r}: true or false is needed, in an address 1 or 0"[:300])
    elif schema["type"] == "object":
        if not isinstance(value, dict):
            raise FieldError(f"'{name}' is no JSON object")
    elif not isinstance(value, list) or len(value) < schema.get("minItems", 0):
        raise FieldError(f"'{name}' is missing or no list: send a list of at least one")
    elif len(value) > schema.get("maxItems", len(value)):
        raise FieldError(f"'{name}' has {len(value)} texts, and at most {schema['maxItems']} are read at a time", MANY)
    else:
        for place, each in enumerate(value):
            _check(schema["items"], each, f"{name}[{place}]")
