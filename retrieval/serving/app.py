"""The server's application: an API of JSON, protocols that other programs speak, counts for Prometheus, and a page."""

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retrieval.serving import (
    api_routes,
    health_routes,
    mcp_server,
    openai_routes,
    openapi,
    page,
    rerank_routes,
    responses,
    tei_routes,
    vertex_routes,
)
from retrieval.serving.answers import written
from retrieval.serving.engine import Engine
from retrieval.serving.guard import Guard
from retrieval.serving.keys import Keys
from retrieval.serving.measures import KIND
from retrieval.serving.requests import Given, Limits, Operation
from retrieval.serving.responses import json_response
from retrieval.serving.service import Service

# Each gives its `operations` of an engine. Those that are asked most often come first.
PROTOCOLS = (api_routes, openai_routes, tei_routes, rerank_routes, vertex_routes, health_routes)


def make_app(
    service: Callable[[], Service],
    limits: Limits,
    hosts: Sequence[str],
    origins: Sequence[str] = (),
    name: str = "model",
    keys: Keys | None = None,
) -> "Guard | _CrossOrigin":
    """The application.

    Args:
      service: gives the one that answers now.
      hosts: names that requests may ask for, so that no other site's page reaches this one; none for any.
      origins: of other sites whose pages may read what is answered; '*' for any.
      name: of the model, for clients that name one.
      keys: one of which a request has to have; None where none is needed.
    """
    engine = Engine(service, limits, name)
    operations = [operation for protocol in PROTOCOLS for operation in protocol.operations(engine)]
    operations += _descriptions([*operations, *mcp_server.operations(engine)], engine)
    by_path: dict[str, dict[str, Operation]] = {}
    for each in operations:
        by_path.setdefault(each.path, {})[each.method] = each
    mcp = mcp_server.http(engine) if mcp_server.is_installed() else None
    own = [
        *(Route(path, _endpoint(of, limits), methods=list(of)) for path, of in by_path.items()),
        *(Route(path, functools.partial(_file, file), methods=["GET"]) for path, file in page.files().items()),
    ]
    routes = [*own, *(mcp.routes if mcp else ())]
    handlers: Any = responses.handlers()
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=mcp.lifespan if mcp else None)
    seconds = {route.path: limits.seconds for route in own} | {mcp_server.PATH: limits.seconds}
    seconds |= {each.path: limits.inputs_seconds for each in operations if each.is_foreign}
    # Around all of it: what Starlette has for middleware does not see the answer to an error of the server.
    guarded = Guard(app, hosts, seconds, engine, keys, origins)
    return _CrossOrigin(guarded, origins) if origins else guarded


class _CrossOrigin(CORSMiddleware):
    """Lets pages of other sites read what is behind it, errors of the guard too."""

    def __init__(self, guarded: Guard, origins: Sequence[str]):
        # The headers are that of a POST, and those that have a key.
        super().__init__(guarded, origins, ["GET", "POST"], ["content-type", "authorization", "x-api-key"])
        self.engine = guarded.engine


def _endpoint(by_method: Mapping[str, Operation], limits: Limits) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        operation = by_method["GET" if request.method == "HEAD" else request.method]
        return await operation.answer(await operation.read(request, limits))

    return answer


def _descriptions(operations: Sequence[Operation], engine: Engine) -> list[Operation]:
    """What is said of all operations, and of the server."""
    every: list[Operation] = []

    async def listed(given: Given) -> Response:
        return json_response(written(openapi.routes(every)))

    async def described(given: Given) -> Response:
        return json_response(written(openapi.description(every)))

    async def measured(given: Given) -> Response:
        return Response(engine.measures.text(), media_type=KIND)

    own = [
        Operation("GET", "/api", "these routes", listed, "Routes"),
        Operation("GET", "/openapi.json", "the API in OpenAPI 3.1", described, "OpenApi"),
        Operation("GET", "/metrics", "counts for Prometheus", measured),
    ]
    every += [own[0], *operations, *own[1:]]
    return own


async def _file(file: page.File, request: Request) -> Response:
    return Response(file.content, media_type=file.kind)
