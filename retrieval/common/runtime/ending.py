"""How a process ends: by SIGTERM, with its work, after an error, or because another host of its pod has ended.

A process that ends tells the others why; one that is killed cannot, and the others find out. What is written is whole
at every moment, so that a process may end at any.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

from retrieval.common import terminal
from retrieval.common.errors import first_line
from retrieval.common.runtime import pod, signals
from retrieval.common.runtime.pod import A_MOMENT, FOREVER, Pod
from retrieval.common.runtime.signals import EXIT_CODE

# Seconds after which a process that says nothing counts as dead, and the others end.
SILENCE = 40

# The key of what the first process to end has told.
ENDED = "retrieval/ended"

# Seconds for news to reach the other processes, and for one of them to say the same in its own words.
_NEWS = 2

_LOST = "error: another host is gone ({}): start all of them again, the same command goes on from what is finished"
# What collectives say when the other end of a connection is closed, and what none of them says.
_CUT_OFF = re.compile(r"gloo|connection (closed|reset|refused)|broken pipe|socket closed|UNAVAILABLE", re.IGNORECASE)
# The C library's, which gives the handler that was there: Python's own knows none but its own.
_C_SIGNAL = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(("signal", ctypes.CDLL(None)))
_OWN_FAULT = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED")


def heed_signals() -> None:
    """As `signals.heed`; the other processes of a pod stop with this one."""

    def preempted() -> None:
        if (joined := pod.current()) and joined.waiting:
            end(EXIT_CODE, "interrupted while another host was at work: the same command goes on from there")

    signals.heed(preempted)


def end_with_input() -> None:
    """From now on this process ends when its standard input does.

    That is a pipe from a process that must not leave it alone.
    """

    def end() -> None:
        os.read(sys.stdin.fileno(), 1)  # which returns when the other end is closed
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


class Preemption:
    """Whether the machine of some process is about to go away.

    Attributes:
      received: set when SIGTERM or SIGHUP has come to this process.
    """

    def __init__(self, received: threading.Event):
        self.received = received

    def __call__(self, step: int) -> bool:
        """Whether to save this step and stop. All processes ask after every step and get the same answer."""
        return self.received.is_set()


@contextlib.contextmanager
def watch() -> Iterator[Preemption]:
    """Defers SIGTERM and SIGHUP to the end of the block, which asks after every step whether to stop there.

    On a pod JAX answers, by a step that all processes have yet to reach. It may lie behind the last step: then the
    processes have to tell each other what they received.
    """
    with signals.deferred() as received:
        yield Preemption(received) if pod.current() is None else _SyncPoint(received)


class _SyncPoint(Preemption):
    """JAX's service, which agrees on a step. Its handler of SIGTERM is called by ours, which knows of SIGHUP too."""

    _handler: Any = None  # JAX's, of which there is one in a process

    def __init__(self, received: threading.Event):
        import jax
        from jax._src import distributed

        super().__init__(received)
        self._passed_on = False
        if _SyncPoint._handler is None:
            ours = signal.getsignal(signal.SIGTERM)
            jax.config.update("jax_enable_preemption_service", True)
            distributed.global_state.initialize_preemption_sync_manager()
            _SyncPoint._handler = _C_SIGNAL(signal.SIGTERM, None)
            signal.signal(signal.SIGTERM, ours)

    def __call__(self, step: int) -> bool:
        from jax.experimental import multihost_utils

        if self.received.is_set() and not self._passed_on:
            self._passed_on, ours = True, signal.getsignal(signal.SIGTERM)
            _C_SIGNAL(signal.SIGTERM, _SyncPoint._handler)
            signal.raise_signal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, ours)
        return multihost_utils.reached_preemption_sync_point(step)


def leave(code: int, why: str = "") -> NoReturn:
    """Ends the process, at once where there are others: they may never come to where JAX would wait for them.

    A regular end would also take Python away from JAX's threads, which may still call it.

    Args:
      why: what the others say when they end too.
    """
    signals.leave()
    if (joined := pod.current()) is None:
        sys.exit(code)
    joined.code = code
    joined.leaving.set()
    sys.stdout.flush()
    # Those that have done their work end together: the service goes with the first process.
    together = code in (0, EXIT_CODE) and _all_leave()
    if code and not together:
        _announce(code, why)
    elif joined.process == 0:
        time.sleep(_NEWS / 2)
    os._exit(code)


def end(code: int, why: str) -> None:
    """Ends the process at once, from any of its threads, unless it is ending already; the others of a pod hear of it.

    What is written is whole at every moment.
    """
    if joined := pod.current():
        if joined.leaving.is_set():
            return
        joined.code = code
        joined.leaving.set()
    print(terminal.printable(why), file=sys.stderr, flush=True)
    sys.stdout.flush()
    if joined:
        _announce(code, why)
    os._exit(code)


def leave_after(error: Exception) -> NoReturn:
    """Ends a process of a pod after an exception that it does not expect.

    Where that is what another process's end looks like from here, it ends with the exit code to start again.
    """
    import jax

    if isinstance(error, jax.errors.JaxRuntimeError) and not str(error).startswith(_OWN_FAULT):
        cut_off = _CUT_OFF.search(str(error))
        # Meanwhile the thread that listens, or JAX's own, hears more of it and ends this process.
        time.sleep(2 * _NEWS if cut_off else SILENCE + 10)
        if cut_off:
            _lose(error)
        if pod.joined().leaving.is_set():
            _wait_for_the_end()
    traceback.print_exception(error)
    leave(1, first_line(error))


def listen(joined: Pod) -> None:
    """Ends this process when another one does."""
    try:
        process, code, why = json.loads(joined.client.blocking_key_value_get(ENDED, FOREVER))
    except Exception as error:
        _lose(error)
        return
    time.sleep(_NEWS)
    end(code, why if code == EXIT_CODE else f"error: host {process} stopped: {why}")


def ask_for_news() -> None:
    """Asks the service whether a process has ended; raises where it does not answer."""
    pod.joined().client.key_value_try_get(ENDED)


def _lose(reason: Exception | str) -> None:
    end(EXIT_CODE, _LOST.format(first_line(reason)))


def lose_for_good(reason: str) -> NoReturn:
    """Ends this process, for which the others are gone."""
    _lose(reason)
    _wait_for_the_end()


def _wait_for_the_end() -> NoReturn:
    """In a process that another of its threads is about to end."""
    time.sleep(4 * _NEWS)
    os._exit(joined.code if (joined := pod.current()) else 1)


def _announce(code: int, why: str) -> None:
    """Tells the other processes that this one ends, if it still can."""
    joined = pod.joined()
    news = json.dumps([joined.process, code, why])
    thread = threading.Thread(target=pod.quietly, args=[joined.client.key_value_set, ENDED, news], daemon=True)
    thread.start()
    thread.join(_NEWS)
    if joined.process == 0:
        time.sleep(_NEWS / 2)  # the service ends with this process: the others must have heard of it


def _all_leave() -> bool:
    with contextlib.suppress(Exception):
        pod.joined().client.wait_at_barrier("retrieval/leaving", A_MOMENT)
        return True
    return False
