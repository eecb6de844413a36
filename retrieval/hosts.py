"""The processes of a run, one per host of a pod: what the first of them does for all, and when they are to stop.

Without `connect` there is one process, the first. Where there are several, all of them make the same calls in the same
order: results, and only results, go over JAX's coordination service, which needs no accelerator.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from retrieval.errors import UserError

EXIT_CODE = 75  # EX_TEMPFAIL: what the launch scripts start again

# Milliseconds. A stage may take days; a process that dies ends the others.
_FOREVER, _A_MOMENT = 1 << 40, 10_000


# Seconds from SIGTERM to the end of the process, whatever it does: cloud machines are gone after 30.
_GRACE = 25

# Seconds after which a process that says nothing counts as dead, and the others end.
_SILENCE = 40


class PreemptedError(BaseException):
    """The machine is about to go away, and what is finished is saved: the same command goes on from there.

    Like KeyboardInterrupt, it is not for those who handle exceptions of their own.
    """


@dataclasses.dataclass
class _Pod:
    client: Any
    process: int
    calls: Iterator[int] = dataclasses.field(default_factory=itertools.count)


_pod: _Pod | None = None


def connect() -> None:
    """Joins this process with those of the other hosts; comes before anything else that JAX is asked for.

    TPU VMs, GKE and Slurm tell JAX who they are. Elsewhere the environment does: JAX_COORDINATOR_ADDRESS (HOST:PORT of
    the first process), JAX_NUM_PROCESSES and JAX_PROCESS_ID.

    Raises:
      UserError: it cannot be found out which hosts there are, or they cannot be reached.
    """
    global _pod
    import jax
    from jax._src import distributed  # the only way to the client, which Orbax takes too

    numbers = [_number(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")]
    # Told which processes there are, JAX must not look for a cluster around them.
    method = None if None in numbers else "deactivate"
    try:
        jax.distributed.initialize(None, *numbers, cluster_detection_method=method, heartbeat_timeout_seconds=_SILENCE)
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(
            f"--multihost: the hosts cannot be joined ({error}); on TPU VMs, GKE and Slurm they find each other, "
            "elsewhere set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or leave --multihost out"
        ) from error
    _pod = _Pod(distributed.global_state.client, jax.process_index())
    if not is_first():  # what it would say is what the first says
        logging.getLogger("retrieval").setLevel(logging.WARNING)
        os.environ["TQDM_DISABLE"] = "1"  # as long as nobody has imported tqdm


def is_alone() -> bool:
    """Whether there is no other process."""
    return _pod is None


def is_first() -> bool:
    """Whether this is the process that does what only one may do."""
    return is_alone() or _pod.process == 0


def on_first(function: Callable[[], Any]) -> Any:
    """The result of `function`, which the first process alone calls, once all have come here.

    Returns:
      In the first process what it returned, in the others the same as it comes back from JSON.

    Raises:
      UserError: in every process, when the function raised anything in the first.
    """
    if _pod is None:
        return function()
    key = f"retrieval/{next(_pod.calls)}"
    _pod.client.wait_at_barrier(f"{key}/all", _FOREVER)
    if _pod.process != 0:
        answer = json.loads(_pod.client.blocking_key_value_get(key, _FOREVER))
        if "error" in answer:
            _pod.client.wait_at_barrier(f"{key}/read", _A_MOMENT)
            raise UserError(f"the first host stopped: {answer['error']}")
        return answer["result"]
    try:
        result = function()
    except BaseException as error:
        _pod.client.key_value_set(key, json.dumps({"error": str(error) or type(error).__name__}))
        with contextlib.suppress(Exception):  # the service ends with this process: the others must have read it
            _pod.client.wait_at_barrier(f"{key}/read", _A_MOMENT)
        raise
    _pod.client.key_value_set(key, json.dumps({"result": result}))
    return result


def heed_sigterm() -> None:
    """From now on SIGTERM raises `PreemptedError` in the main thread, and `_GRACE` seconds later the process is gone.

    What is written is whole at every moment, so a process that is in a long computation then may as well end there.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)

    def end() -> None:
        while os.read(reads, 1) != bytes([signal.SIGTERM]):
            pass
        time.sleep(_GRACE)
        os._exit(EXIT_CODE)

    threading.Thread(target=end, daemon=True).start()
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget_sigterm)
    signal.signal(signal.SIGTERM, _interrupt)


@contextlib.contextmanager
def watch() -> Iterator[Callable[[int], bool]]:
    """A function of the step that says whether this is the step to save and stop at: SIGTERM came to some process.

    All processes ask after every step, and all get the same answer.
    """
    if _pod is not None:
        from jax.experimental import multihost_utils

        yield multihost_utils.reached_preemption_sync_point
        return
    received = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: received.set())
    try:
        yield lambda step: received.is_set()
    finally:
        # Once is enough: a second one would interrupt what is done about the first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN if received.is_set() else before)


def _interrupt(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise PreemptedError("interrupted: what was finished is kept, and the same command goes on from there")


def _forget_sigterm() -> None:
    """A worker process ends as any other does, and does not tell its parent's thread."""
    if signal.getsignal(signal.SIGTERM) is _interrupt:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave(code: int) -> NoReturn:
    """Ends the process; where there are others, at once, for they may never come to where JAX would wait for them."""
    if is_alone():
        sys.exit(code)
    sys.stdout.flush()
    os._exit(code)


def _number(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None or value.isdecimal():
        return None if value is None else int(value)
    raise UserError(f"{name}='{value}': not a number; give a whole one, such as 1")
