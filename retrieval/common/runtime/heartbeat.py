"""JAX's client of the coordination service, made so that it tells when the other processes are gone.

By itself it aborts the process, with a stack trace and without a word on what to do. JAX 0.10 takes a callback instead,
and cannot call it. The status that it has for it is no Python object, and the exception about that ends in
`std::terminate`. So this takes `std::terminate` too, in a process that has no other use for it. Without it the kills of
`test_a_process_ends_when_it_loses_another` in `pod_test.py` end with exit code 134, which nothing starts again.
"""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from retrieval.common.runtime import pod

# Seconds for a client that is well to answer.
_PATIENCE = 2

_HANDLER = ctypes.CFUNCTYPE(None)


@contextlib.contextmanager
def heard(library: Any, ask: Callable[[], Any], end: Callable[[str], NoReturn]) -> Iterator[None]:
    """Within it, the clients that JAX makes call `end` with a reason, in a thread of theirs, when they lose the others.

    Args:
      library: the module that JAX takes the client from.
      ask: asks the client anything. One that has lost the others does not answer; where it does, an exception of some
        other library has come to its end, and takes it.
    """
    global _handler
    try:
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
    except (OSError, AttributeError):  # another C++ library: JAX aborts as ever
        yield
        return
    set_terminate.restype = _HANDLER

    def on_terminate() -> None:
        if _answers(ask):
            before()
        end("it does not answer")

    _handler = _HANDLER(on_terminate)
    before = set_terminate(_handler)
    make = library.get_distributed_runtime_client
    library.get_distributed_runtime_client = functools.partial(make, missed_heartbeat_callback=lambda s: end(str(s)))
    try:
        yield
    finally:
        library.get_distributed_runtime_client = make


_handler: Any = None  # collected, it could not be called


def _answers(ask: Callable[[], Any]) -> bool:
    thread = threading.Thread(target=pod.quietly, args=[ask], daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return not thread.is_alive()
