"""The server's application: an API of JSON, protocols that other programs speak, counts for Prometheus, and a page."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retrieval.serving import api_routes, foreign_routes, mcp_server, openapi, responses
from retrieval.serving.engine import Engine
from retrieval.serving.guard import Guard, Keys
from retrieval.serving.requests import Operation, Values
from retrieval.serving.responses import response

_PAGE = Path(__file__).parent / "page"
_FILES = (("/", "html", "html"), ("/page.css", "css", "css"), ("/page.js", "js", "javascript"))


def make_app(engine: Engine, hosts: Sequence[str] = (), keys: Keys | None = None) -> Guard:
    """The application.

    Args:
      hosts: names that requests may ask for, so that no other site's page reaches this one; none for any.
      keys: one of which a request has to have; None where none is needed.
    """
    limits, searches = engine.limits, bool(engine.service.passages)
    operations = [each for each in api_routes.operations(engine) if searches or not each.path.startswith("/api/")]
    operations += foreign_routes.operations(engine)

    async def description(engine: Engine, values: Values) -> Any:
        return openapi.description(operations)

    async def measures(engine: Engine, values: Values) -> Response:
        return Response(generate_latest(engine.measures.registry), media_type=CONTENT_TYPE_LATEST)

    operations += [
        Operation("GET", "/openapi.json", "the API in OpenAPI 3.1", description, "OpenApi"),
        Operation("GET", "/metrics", "counts for Prometheus", measures),
    ]
    by_path: dict[str, dict[str, Operation]] = {}
    for each in operations:
        by_path.setdefault(each.path, {})[each.method] = each
    tools, lifespan = mcp_server.http(engine) if searches else ([], None)
    own = [Route(path, _endpoint(of, engine), methods=list(of)) for path, of in by_path.items()]
    pages = [(path, (_PAGE / f"page.{suffix}").read_bytes(), kind) for path, suffix, kind in _FILES] if searches else []
    pages = pages or [("/", _note(engine, operations).encode(), "plain")]
    own += [Route(path, _file(content, kind), methods=["GET"]) for path, content, kind in pages]
    app = Starlette(routes=[*own, *tools], exception_handlers=responses.handlers(), lifespan=lifespan)
    seconds = {route.path: limits.seconds for route in own} | {mcp_server.PATH: limits.inputs_seconds}
    seconds |= {each.path: limits.inputs_seconds for each in operations if each.is_foreign}
    # Around all of it: what Starlette has for middleware does not see the answer to an error of the server.
    return Guard(app, hosts, seconds, engine, keys)


def _endpoint(by_method: Mapping[str, Operation], engine: Engine) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        operation = by_method["GET" if request.method == "HEAD" else request.method]
        return response(await operation.answer(engine, await operation.read(request, engine.limits)))

    return answer


def _note(engine: Engine, operations: Sequence[Operation]) -> str:
    """What there is in place of a page, where nothing is searched."""
    lines = [f"{each.method} {each.path.replace(':path', '')}    {each.what}" for each in operations]
    return "\n".join([f"{engine.name}: models without documents. What there is:", "", *lines, ""])


def _file(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(content, media_type=f"text/{kind}")

    return answer
