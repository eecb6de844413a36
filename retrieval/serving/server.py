"""A server of this process: it listens at once, and ends when the process is told to, after what it is answering."""

import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn

from retrieval.errors import UserError

_HEADER = 16 << 10  # bytes of a request before its body
_IDLE = 20  # seconds that a connection may be silent
_SWITCH = 0.0005  # seconds after which a thread gives way to another: the connections' must not wait for searches
_DRAIN = 20  # seconds for answers that are under way; the program itself ends 25 after SIGTERM


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; connections wait until there is a server.

    Raises:
      UserError: the port is taken, or the address is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = f"port {port} of {host} is taken: end what listens there, or set config.serve.port to another one"
        elif error.errno == errno.EACCES:
            why = f"no permission to listen at port {port} of {host}: set config.serve.port to one above 1023"
        else:
            why = f"cannot listen at {host}, port {port} ({error.strerror or error}): mend config.serve.host"
        raise UserError(why) from error


def run(app: Any, listening: socket.socket) -> None:
    """Answers until SIGTERM or SIGINT, and then what has been asked until then."""
    sys.setswitchinterval(_SWITCH)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        h11_max_incomplete_event_size=_HEADER,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=_DRAIN,
    )
    _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal is heeded once: the process then goes on to its end."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
