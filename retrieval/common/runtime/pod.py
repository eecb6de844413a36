"""The pod that this process is of: the other processes, and the client by which they hear of each other."""

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

# Milliseconds. A stage may take days; a process that dies ends the others.
FOREVER, A_MOMENT = 1 << 40, 10_000


@dataclasses.dataclass
class Pod:
    """Attributes:
    waiting: the main thread waits for another process, where no signal reaches it.
    leaving: this process is about to end, with `code`; that others do is no news any more.
    """

    client: Any
    process: int
    processes: int
    calls: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    waiting: bool = False
    leaving: threading.Event = dataclasses.field(default_factory=threading.Event)
    code: int = 0

    def next_key(self) -> str:
        """A key that all processes give to the call which they make now."""
        return f"retrieval/{next(self.calls)}"

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """A block in which the main thread waits for another process."""
        self.waiting = True
        try:
            yield
        finally:
            self.waiting = False


_pod: Pod | None = None


def join(pod: Pod) -> None:
    """From now on this process is one of several."""
    global _pod
    _pod = pod


def current() -> Pod | None:
    """The pod, where there are other processes."""
    return _pod


def joined() -> Pod:
    """The pod of a process that is not alone."""
    assert _pod is not None, "this process is alone"
    return _pod


def quietly(function: Callable, *arguments: Any) -> None:
    """Calls a function of the client; that the others are gone is told elsewhere."""
    with contextlib.suppress(Exception):
        function(*arguments)
