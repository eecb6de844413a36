"""Answers of JSON, and those that say why there is none."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import UserError
from retrieval.serving.answers import written
from retrieval.serving.batching import BusyError
from retrieval.serving.errors import VALUE, FieldError, RefusedError, form_of

_HTTP = {404: "there is no such address: see /api", 405: "this address takes another method"}


def json_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer of JSON."""
    return Response(body, status, headers, media_type="application/json")


def handlers() -> dict[type[Exception], object]:
    """What Starlette answers in place of an exception, in the form of the address that was asked for."""
    return {UserError: _refuse, RefusedError: _refuse, BusyError: _busy, HTTPException: _http, Exception: _failed}


def _error(
    request: Request,
    status: int,
    message: str,
    headers: dict[str, str] | None = None,
    field: str = "",
    code: str = "",
) -> Response:
    body = form_of(request.url.path).body(status, message, field, code)
    return json_response(written(body), status, headers)


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, RefusedError):
        return _error(request, error.status, str(error), field=error.field, code=error.code)
    kind, field = (error.kind, error.field) if isinstance(error, FieldError) else (VALUE, "")
    return _error(request, form_of(request.url.path).fields.get(kind, 400), str(error), field=field)


async def _busy(request: Request, error: Exception) -> Response:
    message = "too many requests wait already: try again in a second"
    return _error(request, form_of(request.url.path).busy, message, {"retry-after": "1"})


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = _HTTP.get(error.status_code, error.detail)
    return _error(request, error.status_code, message, dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    return _error(request, form_of(request.url.path).failed, "the server could not answer; its log says why")
