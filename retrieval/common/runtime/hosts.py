"""The processes of a run, one per host of a pod: who they are, and what the first of them does for all.

Without `connect` there is one process, the first. Where there are several, all of them make the same calls in the same
order. Only results go over JAX's coordination service, which needs no accelerator. `ending` says how they end.
"""

import atexit
import contextlib
import functools
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from retrieval.common.errors import UserError
from retrieval.common.runtime import ending, heartbeat, pod
from retrieval.common.runtime.pod import A_MOMENT, FOREVER, Pod
from retrieval.common.runtime.signals import EXIT_CODE, PreemptedError, deferred

# Seconds that the hosts wait for each other at the start: a slice that was preempted may take long to come back.
_ARRIVAL = 3600

_ABSENT = (
    "error: --multihost: not all hosts have joined: start all of them again, the same command goes on from what is "
    "finished; if that does not help, look whether each of them is started once, and reaches the first"
)

Give = Callable[[Any], None]
"""Gives an order, of JSON, to the other processes. The one that gives it takes its own part afterwards."""

_shared: Any = None  # what brings files of all hosts to the first (`gather`), and its own to them (`spread`)


@deferred()  # to a host that waits for this one's devices JAX would do what nobody can catch
def connect() -> None:
    """Joins this process with those of the other hosts; comes before anything else that JAX is asked for.

    TPU VMs, GKE and Slurm tell JAX who they are. Elsewhere the environment does: JAX_COORDINATOR_ADDRESS (HOST:PORT of
    the first process), JAX_NUM_PROCESSES and JAX_PROCESS_ID. Where some do not come, this process ends with the exit
    code to start all of them again.

    Raises:
      UserError: it cannot be found out which hosts there are.
    """
    import jax
    from jax._src import distributed  # the only way to the client, which Orbax takes too

    numbers = [_number(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")]
    # Told which processes there are, JAX must not look for a cluster around them.
    method = None if None in numbers else "deactivate"
    # JAX's own handler of SIGTERM would take the place of ours, and nothing but training would heed it.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        library = vars(distributed)["_jax"]
        with heartbeat.heard(library, ending.ask_for_news, ending.lose_for_good):
            waits = {"initialization_timeout": _ARRIVAL, "heartbeat_timeout_seconds": ending.SILENCE}
            jax.distributed.initialize(None, *numbers, cluster_detection_method=method, **waits)
    except (ValueError, RuntimeError, TypeError) as error:
        if distributed.global_state.client is not None:  # so it is known which hosts there are; why is not told
            ending.end(EXIT_CODE, _ABSENT)
        raise UserError(
            f"--multihost: the hosts cannot be joined ({error}); on TPU VMs, GKE and Slurm they find each other, "
            "elsewhere set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or leave --multihost out"
        ) from error
    joined = Pod(distributed.global_state.client, jax.process_index(), jax.process_count())
    pod.join(joined)
    atexit.register(joined.leaving.set)  # before JAX parts from the others
    threading.Thread(target=ending.listen, args=[joined], daemon=True).start()
    if not is_first():  # what it would say is what the first says
        logging.getLogger("retrieval").setLevel(logging.WARNING)
        os.environ["TQDM_DISABLE"] = "1"  # as long as nobody has imported tqdm


def is_alone() -> bool:
    """Whether there is no other process."""
    return pod.current() is None


def is_first() -> bool:
    """Whether this is the process that does what only one may do."""
    return number() == 0


def count() -> int:
    """How many processes there are."""
    return joined.processes if (joined := pod.current()) else 1


def number() -> int:
    """Which of them this is; that of the first is 0."""
    return joined.process if (joined := pod.current()) else 0


@contextlib.contextmanager
def sharing(shared: Any) -> Iterator[None]:
    """In the block `on_first` works on files as if all hosts had one disk, and so does the first after it.

    Args:
      shared: an `artefacts.Exchange`.
    """
    global _shared
    _shared = shared
    try:
        yield
    finally:
        _shared = None
    shared.gather()


def on_first(function: Callable[[], Any]) -> Any:
    """As `tell_all`; where files are shared, the first has those of all, and then all have those of the first."""
    shared = _shared
    if shared is None:
        return tell_all(function)
    shared.gather()
    result = tell_all(function)
    shared.spread()
    return result


def to_first(value: Any) -> list[Any]:
    """In the first process the values of all, in their order, as they come back from JSON; in the others nothing."""
    if (joined := pod.current()) is None:
        return [value]
    key = joined.next_key()
    if joined.process != 0:
        joined.client.key_value_set(f"{key}/{joined.process}", json.dumps(value))
        return []
    with joined.wait():
        keys = [f"{key}/{process}" for process in range(1, joined.processes)]
        return [value, *(json.loads(joined.client.blocking_key_value_get(key, FOREVER)) for key in keys)]


def tell_all(function: Callable[[], Any]) -> Any:
    """The result of `function`, which the first process alone calls, once all have come here.

    Returns:
      In the first process what it returned, in the others the same as it comes back from JSON.

    Raises:
      UserError: in every process, when the function raised anything in the first.
      PreemptedError: in every process, when it did so in the first.
    """
    if (joined := pod.current()) is None:
        return function()
    key = joined.next_key()
    with joined.wait():
        joined.client.wait_at_barrier(f"{key}/all", FOREVER)
    if joined.process != 0:
        return _answer(joined, key)
    try:
        result = function()
    except BaseException as error:
        answer = {"error": str(error) or type(error).__name__, "preempted": isinstance(error, PreemptedError)}
        joined.client.key_value_set(key, json.dumps(answer))
        # The service ends with this process: the others must have read it.
        pod.quietly(joined.client.wait_at_barrier, f"{key}/read", A_MOMENT)
        raise
    joined.client.key_value_set(key, json.dumps({"result": result}))
    return result


def lead(work: Callable[[Give], Any], obey: Callable[[Any], None]) -> Any:
    """`work(give)` in the first process; in each of the others `obey(order)` for every order that it gives.

    Returns:
      In the first process what `work` returned, in the others the same as it comes back from JSON.

    Raises:
      UserError: in every process, when `work` raised anything in the first.
    """
    if is_first():
        try:
            result = work(lambda order: tell_all(lambda: {"order": order}))
        except BaseException as error:
            tell_all(functools.partial(_raise, error))
            raise
        return tell_all(lambda: {"result": result})["result"]
    while "result" not in (order := tell_all(lambda: None)):
        obey(order["order"])
    return order["result"]


def is_anywhere(flag: bool) -> bool:
    """Whether a flag is true in some process. All processes ask, and get the same answer."""
    flags = to_first(flag)
    return tell_all(lambda: any(flags))


def _answer(joined: Pod, key: str) -> Any:
    """What the first process has to say to the others."""
    with joined.wait():
        answer = json.loads(joined.client.blocking_key_value_get(key, FOREVER))
    if "error" in answer:
        pod.quietly(joined.client.wait_at_barrier, f"{key}/read", A_MOMENT)
        kind = PreemptedError if answer["preempted"] else UserError
        raise kind(f"the first host stopped: {answer['error']}")
    return answer["result"]


def _number(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None or value.isdecimal():
        return None if value is None else int(value)
    raise UserError(f"{name}='{value}': not a number; give a whole one, such as 1")


def _raise(error: BaseException) -> NoReturn:
    raise error
