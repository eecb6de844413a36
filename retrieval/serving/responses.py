"""Answers of JSON, and why a request is not answered: each protocol says it in a body of its own, and some statuses."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from retrieval.common.errors import UserError
from retrieval.serving.batching import BusyError

VALUE, EMPTY, MANY, LONG = "value", "empty", "many", "long"

_TEI_TYPES = {400: "Empty", 424: "Backend", 429: "Overloaded", 500: "Backend", 503: "Unhealthy"}
_HTTP = {404: "there is no such address: see /openapi.json", 405: "this address takes another method"}


class RefusedError(Exception):
    """A request that is not answered."""

    def __init__(self, status: int, message: str, field: str = "", code: str = ""):
        """Args are the status of HTTP, a sentence, and for OpenAI's clients the field and a word for the error."""
        super().__init__(message)
        self.status, self.field, self.code = status, field, code


class FieldError(UserError):
    """A field of a request that has a value which it cannot have."""

    def __init__(self, message: str, kind: str = VALUE, field: str = ""):
        """`kind` says how its status is chosen: VALUE, EMPTY, MANY or LONG."""
        super().__init__(message)
        self.kind, self.field = kind, field


class Form(NamedTuple):
    """The errors of a protocol.

    Attributes:
      body: what is sent as JSON, for a status, a sentence, a field and a code; the last two may be ''.
      fields: the status by the kind of a `FieldError`.
      busy: the status where too many wait.
      failed: the status where the server could not answer.
    """

    body: Callable[[int, str, str, str], dict[str, Any]]
    fields: dict[str, int] = {LONG: 413}
    busy: int = 503
    failed: int = 500


def _openai(status: int, message: str, field: str, code: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": field or None, "code": code or None}}


def _tei(status: int, message: str, field: str, code: str) -> dict[str, Any]:
    return {"error": message, "error_type": _TEI_TYPES.get(status, "Validation")}


OWN, OPENAI = Form(lambda status, message, *_: {"error": message}), Form(_openai)
TEI = Form(_tei, {EMPTY: 400, MANY: 413, VALUE: 422, LONG: 422}, busy=429, failed=424)
RERANK = TEI._replace(body=lambda *why: _tei(*why) | {"message": why[1]})  # the last is Cohere's


def form_of(path: str) -> Form:
    """The form of what is asked for at an address, be there something or not."""
    if path.endswith("/rerank") and not path.startswith("/api/"):
        return RERANK
    return OPENAI if path.startswith("/v1/") else TEI if path in ("/", "/info") or path.startswith("/embed") else OWN


def written(value: Any) -> bytes:
    """A value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def response(answer: Any) -> Response:
    """What an operation gives: JSON, a value to be written as JSON, or a response."""
    if isinstance(answer, Response):
        return answer
    return json_response(answer if isinstance(answer, bytes) else written(answer))


def json_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer of JSON."""
    return Response(body, status, headers, media_type="application/json")


def handlers() -> dict[Any, Any]:
    """What Starlette answers in place of an exception, in the form of the address that was asked for."""
    return dict.fromkeys((UserError, RefusedError, BusyError, HTTPException, Exception), _refusal)


async def _refusal(request: Request, error: Exception) -> Response:
    form, headers, message = form_of(request.url.path), {}, str(error)
    if isinstance(error, RefusedError):
        status = error.status
    elif isinstance(error, UserError):
        status = form.fields.get(getattr(error, "kind", VALUE), 400)
    elif isinstance(error, BusyError):
        status, headers = form.busy, {"retry-after": "1"}
    elif isinstance(error, HTTPException):
        status, headers = error.status_code, dict(error.headers or {})
        message = _HTTP.get(status, error.detail)
    else:
        status, message = form.failed, "the server could not answer; its log says why"
    body = form.body(status, message, getattr(error, "field", ""), getattr(error, "code", ""))
    return json_response(written(body), status, headers)
