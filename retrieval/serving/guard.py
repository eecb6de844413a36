"""What stands before every answer: which hosts may be asked for, how long it may take, and what a browser may do."""

import asyncio
import ipaddress
import json
import time
from collections.abc import Collection, Sequence
from typing import Any

from retrieval.serving.measures import Measures

_HEADERS = [
    # The page loads nothing from elsewhere, runs no script but its own, and is shown in no other page.
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class Guard:
    """An ASGI application before another one."""

    def __init__(
        self,
        app: Any,
        hosts: Sequence[str],
        seconds: float,
        paths: Collection[str],
        measures: Measures,
    ):
        """Args:
        hosts: names that requests may ask for; none for any.
        seconds: that a request may take, from its first byte on.
        paths: that are counted by their names.
        measures: are told the path, the status and the seconds of each request.
        """
        self.measures = measures
        self._app, self._hosts, self._seconds = app, frozenset(host.lower() for host in hosts), seconds
        self._paths = paths

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def send_guarded(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        try:
            if self._hosts and _host(scope) not in self._hosts:
                await _refuse(send_guarded, 421, "this server does not answer for that host: see config.serve.hosts")
                return
            async with asyncio.timeout(self._seconds):
                await self._app(scope, receive, send_guarded)
        except TimeoutError:
            if not status:
                await _refuse(send_guarded, 503, f"no answer within {self._seconds:g} seconds: try again later")
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self.measures.answered(path, status, time.perf_counter() - began)


def local_names(host: str) -> tuple[str, ...]:
    """The names that a server at an address of this machine alone answers for; () where others reach it.

    So a page of another site cannot read what is served here by a name that it has led to this machine.
    """
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    return ("localhost", "127.0.0.1", "::1", host) if is_local else ()


def _host(scope: Any) -> str:
    """The host of a request without its port."""
    value = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1").lower()
    return value.partition("]")[0].lstrip("[") if value.startswith("[") else value.partition(":")[0]


async def _refuse(send: Any, status: int, message: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": message}).encode()})
