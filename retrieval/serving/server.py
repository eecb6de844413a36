"""A server of this process: it listens at once, and ends when the process is told to, after what it is answering."""

import asyncio
import contextlib
import errno
import functools
import math
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from retrieval.common.errors import UserError
from retrieval.common.runtime import signals

_HEADER = 16 << 10  # bytes of a request before its body
_IDLE = 20  # seconds from a connection, or from the answer before, until a request is there up to its body
_SWITCH = 0.0005  # seconds after which a thread gives way to another: the connections' must not wait for searches
_NOTICE = 3  # seconds from SIGTERM, on which nobody is told any more that the server is ready, until it stops to listen
_LEFT = 2  # seconds between the last answer and the end of the process


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; connections wait until there is a server.

    Raises:
      UserError: the port is taken, or the address is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        why = "it is taken" if error.errno == errno.EADDRINUSE else error.strerror or error
        remedy = "set config.serve.port to another one, or mend config.serve.host"
        raise UserError(f"cannot listen at {host}, port {port} ({why}): {remedy}") from error


def run(
    app: Any, listening: socket.socket, closed: Callable[[str], None], ending: Callable[[], None] = lambda: None
) -> None:
    """Answers until a signal ends the process, and then what has been asked until then.

    Args:
      closed: is told why a connection is closed before a request is there: "late" or "invalid".
      ending: is called on SIGTERM, some seconds before no connection is taken any more.
    """
    sys.setswitchinterval(_SWITCH)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection is a file
    # Of a client that does not read its answer.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _IDLE)
    protocol: Any = functools.partial(_Protocol, closed)
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_config=None,
        log_level="error",  # what is wrong with requests is counted
        access_log=False,
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=_HEADER,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=max(1, round(signals.grace - _NOTICE - _LEFT)),
    )
    _Server(config, ending).run(sockets=[listening])


class _Protocol(H11Protocol):
    """As uvicorn's, but whoever begins no request, or does not end its head, is not waited for either."""

    def __init__(self, closed: Callable[[str], None], *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._closed = closed

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        due, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None  # which would end with the first byte
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # what follows an answer that came early is no request
            self.transport.abort()
        if due and self.cycle and not self.cycle.response_complete:
            due.cancel()
        elif due:
            self.timeout_keep_alive_task = due

    def timeout_keep_alive_handler(self) -> None:
        if self.cycle is None or self.conn.trailing_data[0]:
            self._closed("late")
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        self._closed("invalid")
        super().send_400_response(msg)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]):
        super().__init__(config)
        self._ending, self._ends_at = ending, math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM first makes the server known as not ready; whoever types Ctrl-C waits for nobody."""
        if sig == signal.SIGTERM and math.isinf(self._ends_at):
            self._ending()
            self._ends_at = time.monotonic() + _NOTICE
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Whether to end, asked ten times a second."""
        return await super().on_tick(counter) or time.monotonic() >= self._ends_at

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal is heeded once: the process then goes on to its end."""
        heeded = [number for number in signals.STATUS if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self.handle_exit) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
