"""Calls that come together are made together: a thread takes all that waits, and does it in one go."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class BusyError(Exception):
    """As many calls wait as may wait."""

    def __init__(self) -> None:
        super().__init__("too many requests wait already: try again in a second")


class Batcher(Generic[T, R]):
    """A function of a list, called for one item at a time from any thread.

    Nothing waits for company: while one batch is computed the next one gathers.
    """

    def __init__(
        self,
        function: Callable[[list[T]], Sequence[R]],
        most: int,
        waiting: int,
        on_batch: Callable[[int], None] = lambda size: None,
    ):
        """Args:
        function: gives a result for every item, in order.
        most: items of a batch.
        waiting: items that may wait.
        on_batch: gets the size of each batch.
        """
        self._function, self._most, self._limit, self._on_batch = function, most, waiting, on_batch
        self._waiting: queue.SimpleQueue[tuple[T, Future[R]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def __len__(self) -> int:
        """How many items wait."""
        return self._waiting.qsize()

    def submit(self, item: T, is_new: bool = True) -> "Future[R]":
        """The result of an item, as soon as its batch is done; one that is cancelled before is left out.

        Args:
          is_new: whether it may be refused: not where others of its request have been computed.

        Raises:
          BusyError: too many wait already.
        """
        if is_new and len(self) >= self._limit:
            raise BusyError
        future: Future[R] = Future()
        self._waiting.put((item, future))
        return future

    def _work(self) -> None:
        while True:
            calls = [self._waiting.get()]
            while len(calls) < self._most and not self._waiting.empty():
                calls.append(self._waiting.get())
            wanted = [(item, future) for item, future in calls if future.set_running_or_notify_cancel()]
            if wanted:
                self._on_batch(len(wanted))
                self._answer(wanted)

    def _answer(self, calls: list[tuple[T, "Future[R]"]]) -> None:
        """One item that cannot be answered takes no other with it: each is then asked alone."""
        try:
            results = self._function([item for item, _ in calls])
        except Exception as error:
            if len(calls) == 1:
                calls[0][1].set_exception(error)
            else:
                for each in calls:
                    self._answer([each])
            return
        for (_, future), result in zip(calls, results, strict=True):
            future.set_result(result)
