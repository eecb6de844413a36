"""The signals that end a process: SIGTERM and SIGHUP, as before a preemption, and SIGINT, as by Ctrl-C.

A handler raises an exception. Python drops what is raised in a callback of its garbage collector or in `__del__`, and
some libraries drop every exception. So the handler is called again until its exception is being handled.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

EXIT_CODE = 75  # EX_TEMPFAIL: what the launch scripts start again
INTERRUPTED = "interrupted: what was finished is kept, and the same command goes on from there"
STATUS: dict[int, int] = {signal.SIGTERM: EXIT_CODE, signal.SIGHUP: EXIT_CODE, signal.SIGINT: 130}

# Seconds from a signal to the end of the process, whatever it does: most cloud machines are gone after 30.
GRACE = 25.0

# Seconds until the handler is called again.
_AGAIN = 0.2


class PreemptedError(KeyboardInterrupt):
    """The machine is about to go away, and what is finished is saved. The same command goes on from there.

    Like the exception of Ctrl-C, it is not for those who handle exceptions of their own.
    """


grace = GRACE  # of this process
received: int | None = None  # the signal that has raised an exception, whatever has become of that
_leaving = False


def heed(preempted: Callable[[], None]) -> None:
    """From now on a signal raises an exception in the main thread, and `grace` seconds later the process is gone.

    That is `PreemptedError`, or `KeyboardInterrupt` for SIGINT, of which a second one ends the process at once. What is
    written is whole at every moment. So a process that is in a long computation then may as well end there.

    Args:
      preempted: is called in another thread when SIGTERM or SIGHUP has come.
    """
    reads, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    threading.Thread(target=_count_down, args=[reads, preempted], daemon=True).start()
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget)
    for number in STATUS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` and a shell's `&` have it
            signal.signal(number, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STATUS)


def hold() -> None:
    """Keeps signals back until the program that takes this one's place heeds them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STATUS)


@contextlib.contextmanager
def deferred() -> Iterator[threading.Event]:
    """In the block SIGTERM and SIGHUP set an event, and raise nothing before its end."""
    event = threading.Event()
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: event.set()) for number in numbers}
    try:
        yield event
    finally:
        for number, handler in before.items():
            # Once is enough: a second one would interrupt what is done about the first.
            signal.signal(number, _ignore if event.is_set() and handler is not _interrupt else handler)
    if event.is_set() and _interrupt in before.values():
        _interrupt(signal.SIGTERM)


def leave() -> None:
    """No signal raises an exception any more: the process is at its end."""
    global _leaving
    _leaving = True


def _count_down(reads: int, preempted: Callable[[], None]) -> None:
    while (number := os.read(reads, 1)[0]) not in STATUS:  # an alarm, or the end of a child
        pass
    if number != signal.SIGINT:
        preempted()
    end = time.monotonic() + grace
    while time.monotonic() < end:
        time.sleep(_AGAIN)
        if select.select([reads], [], [], 0)[0] and signal.SIGINT in os.read(reads, 1 << 10):
            break
        if received and not _leaving:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    with contextlib.suppress(OSError):  # of a terminal that is gone
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{INTERRUPTED}\n".encode())
    os._exit(STATUS[number])


def _interrupt(number: int, *_: Any) -> None:
    """Raises the exception of the first signal, unless it is being handled, here or further up."""
    global received
    if _leaving:
        return
    received = received or number
    error = sys.exception()
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    if not error:
        raise (KeyboardInterrupt if received == signal.SIGINT else PreemptedError)(INTERRUPTED)


def _ignore(*_: Any) -> None:
    """Does nothing. SIG_IGN in its place makes Python print a traceback of a signal that is on its way already."""


def _forget() -> None:
    """A worker process ends as any other does, and does not tell its parent's thread."""
    signal.set_wakeup_fd(-1)
    for number in STATUS:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
