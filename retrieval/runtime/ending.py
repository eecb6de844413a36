"""How a process ends: by SIGTERM, with its work, after an error, or because another host of its pod has ended.

A process that ends tells the others why; one that is killed cannot, and the others find out. What is written is whole
at every moment, so that a process may end at any.
"""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

from retrieval import terminal
from retrieval.errors import first_line
from retrieval.runtime import pod, signals
from retrieval.runtime.pod import A_MOMENT, FOREVER, Pod
from retrieval.runtime.signals import EXIT_CODE

# Seconds after which a process that says nothing counts as dead, and the others end.
SILENCE = 40

# The key of what the first process to end has told.
ENDED = "retrieval/ended"

# Seconds for news to reach the other processes, and for one of them to say the same in its own words.
_NEWS = 2

_LOST = "error: another host is gone ({}): start all of them again, the same command goes on from what is finished"
# What collectives say when the other end of a connection is closed, and what none of them says.
_CUT_OFF = re.compile(r"gloo|connection (closed|reset|refused)|broken pipe|socket closed|UNAVAILABLE", re.IGNORECASE)
_OWN_FAULT = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED")


def heed_signals() -> None:
    """As `signals.heed`; the other processes of a pod stop with this one."""

    def preempted() -> None:
        if (joined := pod.current()) and joined.waiting:
            _end(EXIT_CODE, "interrupted while another host was at work: the same command goes on from there")

    signals.heed(preempted)


def end_with_input() -> None:
    """From now on this process ends when its standard input does.

    That is a pipe from a process that must not leave it alone.
    """

    def end() -> None:
        os.read(sys.stdin.fileno(), 1)  # which returns when the other end is closed
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


@contextlib.contextmanager
def watch() -> Iterator[Callable[[int], bool]]:
    """A function of the step that says whether to save and stop there: SIGTERM or SIGHUP came to some process.

    All processes ask after every step, and all get the same answer, on a pod from JAX.
    """
    with signals.deferred() as received:
        yield (lambda step: received.is_set()) if pod.current() is None else _sync_point(received)


def _sync_point(received: threading.Event) -> Callable[[int], bool]:
    """JAX's service, which takes SIGTERM from here to the end of `signals.deferred`: nothing but training asks it."""
    import jax
    from jax._src import distributed
    from jax.experimental import multihost_utils

    if distributed.global_state.preemption_sync_manager is None:
        jax.config.update("jax_enable_preemption_service", True)
        distributed.global_state.initialize_preemption_sync_manager()

    def stops_at(step: int) -> bool:
        if received.is_set():  # SIGHUP, which JAX does not hear
            received.clear()
            os.kill(os.getpid(), signal.SIGTERM)
        return multihost_utils.reached_preemption_sync_point(step)

    return stops_at


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
        _tell(code, why)
    elif joined.process == 0:
        time.sleep(_NEWS / 2)
    os._exit(code)


def end(code: int, why: str) -> NoReturn:
    """Ends the process at once, from any of its threads: what is written is whole at every moment."""
    print(terminal.printable(why), file=sys.stderr, flush=True)
    sys.stdout.flush()
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
    _end(code, why if code == EXIT_CODE else f"error: host {process} stopped: {why}")


def ask_for_news() -> None:
    """Asks the service whether a process has ended; raises where it does not answer."""
    pod.joined().client.key_value_try_get(ENDED)


def _lose(reason: Exception | str) -> None:
    _end(EXIT_CODE, _LOST.format(first_line(reason)))


def lose_for_good(reason: str) -> NoReturn:
    """Ends this process, for which the others are gone."""
    _lose(reason)
    _wait_for_the_end()


def _end(code: int, why: str) -> None:
    """Ends this process, from any of its threads, unless it is ending already."""
    joined = pod.current()
    if joined is None or joined.leaving.is_set():
        return
    joined.code = code
    joined.leaving.set()
    print(terminal.printable(why), file=sys.stderr, flush=True)
    sys.stdout.flush()
    _tell(code, why)
    os._exit(code)


def _wait_for_the_end() -> NoReturn:
    """In a process that another of its threads is about to end."""
    time.sleep(4 * _NEWS)
    os._exit(joined.code if (joined := pod.current()) else 1)


def _tell(code: int, why: str) -> None:
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
