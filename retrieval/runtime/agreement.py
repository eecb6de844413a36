"""The processes of a pod agree on the step after which all of them stop."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

# Milliseconds. A stage may take days; a process that dies ends the others.
FOREVER, A_MOMENT = 1 << 40, 10_000


class Agreement:
    """The step after which all processes stop. It follows the last that any of them had come to at the news."""

    def __init__(
        self,
        client: Any,
        process: int,
        processes: int,
        key: str,
        agreed: threading.Event,
        step: int,
        then: Callable[[], None] = lambda: None,
    ):
        """Args:
        client: of JAX's coordination service.
        key: under which these processes agree, and nobody else.
        agreed: is set when they have.
        step: the one that they go on from.
        then: is called then.
        """
        self._client, self._process, self._processes, self._key = client, process, processes, key
        self._agreed, self._then = agreed, then
        self._step, self._last = step, -1
        self._lock = threading.Lock()
        threading.Thread(target=self._agree, daemon=True).start()

    def __call__(self, step: int) -> bool:
        with self._lock:  # while they agree, none goes on
            self._step = step
            return step == self._last

    def request(self) -> None:
        """Tells all processes that it is time; more than once is no more than once."""
        with contextlib.suppress(Exception):  # the service may be gone already
            self._client.key_value_set(f"{self._key}/notice", "", True)

    def _agree(self) -> None:
        client, steps = self._client, f"{self._key}/steps"
        with contextlib.suppress(Exception):  # the pod has ended, or lost a process; others see to that
            client.blocking_key_value_get(f"{self._key}/notice", FOREVER)
            with self._lock:
                client.key_value_set(f"{steps}/{self._process}", str(self._step))
                others = range(self._processes)
                self._last = 1 + max(int(client.blocking_key_value_get(f"{steps}/{i}", A_MOMENT)) for i in others)
            self._agreed.set()
            self._then()
