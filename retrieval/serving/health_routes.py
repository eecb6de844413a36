"""What a cluster asks: whether the server lives, and whether it takes requests."""

import functools
import os

from starlette.responses import Response

from retrieval.serving.answers import written
from retrieval.serving.engine import Engine
from retrieval.serving.errors import RefusedError
from retrieval.serving.requests import Given, Operation
from retrieval.serving.responses import json_response
from retrieval.serving.vertex_routes import HEALTH

_ALIVE, _READY = ("/health", "/ping"), "/ready"


def free() -> frozenset[str]:
    """The addresses that need no key."""
    return frozenset({*_ALIVE, _READY, os.environ.get(HEALTH) or _READY})


def operations(engine: Engine) -> tuple[Operation, ...]:
    """What is asked every few seconds: no answer needs the device."""
    alive, ready = "whether the server answers at all", "whether requests are taken: 503 from SIGTERM on"
    is_ready = functools.partial(_ready, engine)
    return (
        *(Operation("GET", path, alive, _lives, "Status") for path in _ALIVE),
        *(Operation("GET", path, ready, is_ready, "Status") for path in sorted(free() - {*_ALIVE})),
    )


async def _lives(given: Given) -> Response:
    return json_response(written({"status": "ok"}))


async def _ready(engine: Engine, given: Given) -> Response:
    if engine.is_ending:
        raise RefusedError(503, "the server is about to end: ask another one")
    return json_response(written({"status": "ready", "passages": engine.service.passages}))
