"""What stands before every answer: which hosts may be asked for, by whom, for how long, and what a browser may do."""

import asyncio
import hmac
import ipaddress
import logging
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.serving import api_routes, mcp_server
from retrieval.serving.engine import Engine
from retrieval.serving.responses import form_of, json_response, written

_HOST = re.compile(r"([\w.-]+|\[[\da-f:.]+\])(:\d*)?", re.ASCII | re.IGNORECASE)  # without a user or a path
_KEY = re.compile(r"[\x21-\x7e]+")
_log = logging.getLogger(__name__)

_HEADERS = {
    # The page loads nothing from elsewhere, runs no script but its own, and is shown in no other page.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Keys:
    """The keys of a file. Where a newer state of it cannot be read, the older ones hold, and the log says so."""

    def __init__(self, path: Path):
        """Raises:
        UserError: the file cannot be read, has no key, or a line that is none.
        """
        self._path = path
        self._state, self._keys = files.state(path), read(path)
        if not self._keys:
            raise UserError(f"config.serve.keys_file={path}: no key in it; write one a line")

    def admits(self, headers: Headers) -> bool:
        """Whether a request has a key: as 'Authorization: Bearer KEY' or as 'X-API-Key: KEY'."""
        self._refresh()
        scheme, _, bearer = headers.get("authorization", "").strip().partition(" ")
        sent = [headers.get("x-api-key", ""), bearer if scheme.lower() == "bearer" else ""]
        same = [hmac.compare_digest(each.strip().encode(), key) for each in sent for key in self._keys]
        return any(same)  # all were compared: the time does not say which fits

    def _refresh(self) -> None:
        if (state := files.state(self._path)) == self._state:
            return
        self._state = state
        try:
            self._keys = read(self._path)
            _log.info("serve: keys are read again: %d", len(self._keys))
        except UserError as error:
            _log.warning("the keys that were read before still hold: %s", error)


def read(path: Path) -> tuple[bytes, ...]:
    """The keys of a file; blank lines are passed over.

    Raises:
      UserError: it cannot be read, or a line is no key.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"config.serve.keys_file={path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        if line and not _KEY.fullmatch(line):
            raise UserError(f"config.serve.keys_file={path}, line {number}: a key is of ASCII without spaces")
    return tuple(line.encode() for line in lines if line)


class Guard:
    """An ASGI application before another one."""

    def __init__(
        self, app: Any, hosts: Sequence[str], seconds: Mapping[str, float], engine: Engine, keys: Keys | None = None
    ):
        """Args:
        hosts: names that requests may ask for; none for any.
        seconds: that a request may take, from its first byte on, by its address. Those are counted by their names.
        engine: whose measures are told the path, the status and the seconds of each request.
        keys: one of which a request has to have, but for those about health.
        """
        self._engine = engine
        self._app, self._hosts, self._seconds = app, frozenset(host.lower() for host in hosts), seconds
        self._keys, self._free = keys, api_routes.free()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, path, headers = time.perf_counter(), 0, scope["path"], Headers(scope=scope)
        seconds = self._seconds.get(path, self._engine.limits.seconds)

        async def send_guarded(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *Headers(_HEADERS).raw]}
            await send(message)

        async def refuse(status: int, why: str, code: str = "", **more: str) -> None:
            body = written(form_of(path).body(status, why, "", code))
            await json_response(body, status, {"connection": "close"} | more)(scope, receive, send_guarded)

        try:
            if self._hosts and _name(headers.get("host", "")) not in self._hosts:
                await refuse(421, "this server does not answer for that host: see config.serve.hosts")
            elif self._keys and path not in self._free and not self._keys.admits(headers):
                why = "a key is needed that the server knows: send the header 'Authorization: Bearer KEY'"
                await refuse(401, why, "invalid_api_key", **{"www-authenticate": "Bearer"})
            elif path == mcp_server.PATH and not self._is_own(headers.get("origin", "")):
                await refuse(403, "pages of other sites may not ask for tools")
            else:
                async with asyncio.timeout(seconds):
                    await self._app(scope, receive, send_guarded)
        except TimeoutError:
            if not status:
                await refuse(503, f"no answer within {seconds:g} seconds: try again later", **{"retry-after": "1"})
        finally:
            named = path if path in self._seconds else "other"
            self._engine.measures.requests.labels(named, status).inc()
            self._engine.measures.seconds.labels(named).observe(time.perf_counter() - began)

    def _is_own(self, origin: str) -> bool:
        """Whether a page's origin is this server or none, as the Model Context Protocol has it."""
        scheme, _, host = origin.partition("://")
        return not origin or (scheme in ("http", "https") and _name(host) in self._hosts)


def local_names(host: str) -> tuple[str, ...]:
    """The names that a server at an address of this machine alone answers for; () where others reach it.

    So a page of another site cannot read what is served here by a name that it has led to this machine.
    """
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    return ("localhost", "127.0.0.1", "::1", host) if is_local else ()


def _name(host: str) -> str:
    """A host without its port, in lower case; '' for what is none."""
    match = _HOST.fullmatch(host)
    return match[1].strip("[]").lower() if match else ""
