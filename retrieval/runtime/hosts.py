"""The processes of a run, one per host of a pod.

Here is what the first of them does for all, and when they are to stop.

Without `connect` there is one process, the first. Where there are several, all of them make the same calls in the same
order. Only results go over JAX's coordination service, which needs no accelerator. A process that ends tells the others
why; one that is killed cannot, and the others find out.
"""

import atexit
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

from retrieval import terminal
from retrieval.errors import UserError, first_line
from retrieval.runtime import heartbeat
from retrieval.runtime.agreement import A_MOMENT, FOREVER, Agreement

EXIT_CODE = 75  # EX_TEMPFAIL: what the launch scripts start again

# Seconds from SIGTERM to the end of the process, whatever it does: cloud machines are gone after 30.
_GRACE = 25

# Seconds after which a process that says nothing counts as dead, and the others end.
_SILENCE = 40

# Seconds that the hosts wait for each other at the start: a slice that was preempted may take long to come back.
_ARRIVAL = 3600

# Seconds for news to reach the other processes, and for one of them to say the same in its own words.
_NEWS = 2

_ENDED = "retrieval/ended"
_ABSENT = (
    "error: --multihost: not all hosts have joined: start all of them again, the same command goes on from what is "
    "finished; if that does not help, look whether each of them is started once, and reaches the first"
)
_LOST = "error: another host is gone ({}): start all of them again, the same command goes on from what is finished"
# What collectives say when the other end of a connection is closed, and what none of them says.
_CUT_OFF = re.compile(r"gloo|connection (closed|reset|refused)|broken pipe|socket closed|UNAVAILABLE", re.IGNORECASE)
_OWN_FAULT = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED")


class PreemptedError(BaseException):
    """The machine is about to go away, and what is finished is saved. The same command goes on from there.

    Like KeyboardInterrupt, it is not for those who handle exceptions of their own.
    """


@dataclasses.dataclass
class _Pod:
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


_pod: _Pod | None = None
_shared: "Shared | None" = None
_agreement: Agreement | None = None
_stopping: threading.Event | None = None  # set when SIGTERM has come, while that is watched for
_wakeup: int | None = None  # where a byte stands for a signal


def connect() -> None:
    """Joins this process with those of the other hosts; comes before anything else that JAX is asked for.

    TPU VMs, GKE and Slurm tell JAX who they are. Elsewhere the environment does: JAX_COORDINATOR_ADDRESS (HOST:PORT of
    the first process), JAX_NUM_PROCESSES and JAX_PROCESS_ID. Where some do not come, this process ends with the exit
    code to start all of them again.

    Raises:
      UserError: it cannot be found out which hosts there are.
    """
    global _pod
    import jax
    from jax._src import distributed  # the only way to the client, which Orbax takes too

    numbers = [_number(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")]
    # Told which processes there are, JAX must not look for a cluster around them.
    method = None if None in numbers else "deactivate"
    # JAX's own handler of SIGTERM would take the place of ours, and nothing but training would heed it.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        library = vars(distributed)["_jax"]
        with heartbeat.heard(library, lambda: _joined().client.key_value_try_get(_ENDED), _lose_for_good):
            jax.distributed.initialize(
                None,
                *numbers,
                cluster_detection_method=method,
                initialization_timeout=_ARRIVAL,
                heartbeat_timeout_seconds=_SILENCE,
            )
    except (ValueError, RuntimeError, TypeError) as error:
        if distributed.global_state.client is not None:  # so it is known which hosts there are; why is not told
            end(EXIT_CODE, _ABSENT)
        raise UserError(
            f"--multihost: the hosts cannot be joined ({error}); on TPU VMs, GKE and Slurm they find each other, "
            "elsewhere set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or leave --multihost out"
        ) from error
    _pod = _Pod(distributed.global_state.client, jax.process_index(), jax.process_count())
    atexit.register(_pod.leaving.set)  # before JAX parts from the others
    threading.Thread(target=_listen, args=[_pod], daemon=True).start()
    if not is_first():  # what it would say is what the first says
        logging.getLogger("retrieval").setLevel(logging.WARNING)
        os.environ["TQDM_DISABLE"] = "1"  # as long as nobody has imported tqdm


def is_alone() -> bool:
    """Whether there is no other process."""
    return _pod is None


def _joined() -> _Pod:
    assert _pod is not None, "this process is alone"
    return _pod


def is_first() -> bool:
    """Whether this is the process that does what only one may do."""
    return is_alone() or _joined().process == 0


def count() -> int:
    """How many processes there are."""
    return 1 if _pod is None else _pod.processes


def number() -> int:
    """Which of them this is; that of the first is 0."""
    return 0 if _pod is None else _pod.process


class Shared(Protocol):
    """Files that hosts with a disk each exchange."""

    def gather(self) -> None:
        """Brings to the first process what the others have written."""

    def spread(self) -> None:
        """Brings to the others what the first has."""


@contextlib.contextmanager
def sharing(shared: Shared) -> Iterator[None]:
    """In the block `on_first` works on files as if all hosts had one disk, and so does the first after it."""
    global _shared
    _shared = shared
    try:
        yield
    finally:
        _shared = None
    shared.gather()


def on_first(function: Callable[[], Any]) -> Any:
    """As `tell_all`; where files are shared, the first has those of all, and then all have those of the first.

    Raises:
      UserError: as `tell_all`, or a file cannot be exchanged.
    """
    shared = _shared
    if shared is None:
        return tell_all(function)
    shared.gather()
    result = tell_all(function)
    shared.spread()
    return result


def to_first(value: Any) -> list[Any]:
    """In the first process the values of all, in their order, as they come back from JSON; in the others nothing."""
    if _pod is None:
        return [value]
    key = f"retrieval/{next(_pod.calls)}"
    if _pod.process != 0:
        _pod.client.key_value_set(f"{key}/{_pod.process}", json.dumps(value))
        return []
    with _waiting():
        keys = [f"{key}/{process}" for process in range(1, _pod.processes)]
        return [value, *(json.loads(_pod.client.blocking_key_value_get(key, FOREVER)) for key in keys)]


def tell_all(function: Callable[[], Any]) -> Any:
    """The result of `function`, which the first process alone calls, once all have come here.

    Returns:
      In the first process what it returned, in the others the same as it comes back from JSON.

    Raises:
      UserError: in every process, when the function raised anything in the first.
      PreemptedError: in every process, when it did so in the first.
    """
    if _pod is None:
        return function()
    key = f"retrieval/{next(_pod.calls)}"
    with _waiting():
        _pod.client.wait_at_barrier(f"{key}/all", FOREVER)
    if _pod.process != 0:
        return _answer(key)
    try:
        result = function()
    except BaseException as error:
        answer = {"error": str(error) or type(error).__name__, "preempted": isinstance(error, PreemptedError)}
        _joined().client.key_value_set(key, json.dumps(answer))
        # The service ends with this process: the others must have read it.
        _quietly(_joined().client.wait_at_barrier, f"{key}/read", A_MOMENT)
        raise
    _joined().client.key_value_set(key, json.dumps({"result": result}))
    return result


def _answer(key: str) -> Any:
    """What the first process has to say to the others."""
    with _waiting():
        answer = json.loads(_joined().client.blocking_key_value_get(key, FOREVER))
    if "error" in answer:
        _quietly(_joined().client.wait_at_barrier, f"{key}/read", A_MOMENT)
        kind = PreemptedError if answer["preempted"] else UserError
        raise kind(f"the first host stopped: {answer['error']}")
    return answer["result"]


def heed_sigterm() -> None:
    """From now on SIGTERM raises `PreemptedError` in the main thread, and `_GRACE` seconds later the process is gone.

    What is written is whole at every moment. So a process that is in a long computation then may as well end there.
    """
    global _wakeup
    reads, _wakeup = os.pipe()
    os.set_blocking(_wakeup, False)

    def end() -> None:
        while os.read(reads, 1) != bytes([signal.SIGTERM]):
            pass
        if _agreement is not None:
            _agreement.request()
        elif _pod is not None and _pod.waiting:
            _end(EXIT_CODE, "interrupted while another host was at work: the same command goes on from there")
        time.sleep(_GRACE)
        os._exit(EXIT_CODE)

    threading.Thread(target=end, daemon=True).start()
    signal.set_wakeup_fd(_wakeup, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget_sigterm)
    signal.signal(signal.SIGTERM, _interrupt)


def end_with_input() -> None:
    """From now on this process ends when its standard input does.

    That is a pipe from a process that must not leave it alone.
    """

    def end() -> None:
        os.read(sys.stdin.fileno(), 1)  # which returns when the other end is closed
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


@contextlib.contextmanager
def watch(step: int = 0) -> Iterator[Callable[[int], bool]]:
    """A function of the step that says whether to save and stop there: SIGTERM came to some process.

    All processes ask after every step, and all get the same answer.

    Args:
      step: the one that they go on from.
    """
    global _agreement, _stopping
    received = _stopping = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: received.set())
    _agreement = _agree(_pod, received, step) if _pod is not None else None
    try:
        yield _agreement or (lambda step: received.is_set())
    finally:
        _agreement = _stopping = None
        # Once is enough: a second one would interrupt what is done about the first.
        signal.signal(signal.SIGTERM, _ignore if received.is_set() else before)


def _agree(pod: _Pod, received: threading.Event, step: int) -> Agreement:
    def count_down() -> None:
        if _wakeup is not None:  # for all, whoever the signal came to
            os.write(_wakeup, bytes([signal.SIGTERM]))

    return Agreement(pod.client, pod.process, pod.processes, f"retrieval/{next(pod.calls)}", received, step, count_down)


def is_stopping() -> bool:
    """Whether SIGTERM has come to some process since `watch` began: for what waits in the midst of a step."""
    return _stopping is not None and _stopping.is_set()


def leave(code: int, why: str = "") -> NoReturn:
    """Ends the process, at once where there are others: they may never come to where JAX would wait for them.

    A regular end would also take Python away from JAX's threads, which may still call it.

    Args:
      why: what the others say when they end too.
    """
    if is_alone():
        sys.exit(code)
    pod = _joined()
    pod.code = code
    pod.leaving.set()
    sys.stdout.flush()
    # Those that have done their work end together: the service goes with the first process.
    together = code in (0, EXIT_CODE) and _all_leave()
    if code and not together:
        _tell(code, why)
    elif is_first():
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
        time.sleep(2 * _NEWS if cut_off else _SILENCE + 10)
        if cut_off:
            _lose(error)
        if _joined().leaving.is_set():
            _wait_for_the_end()
    traceback.print_exception(error)
    leave(1, first_line(error))


def _listen(pod: _Pod) -> None:
    """Ends this process when another one does."""
    try:
        process, code, why = json.loads(pod.client.blocking_key_value_get(_ENDED, FOREVER))
    except Exception as error:
        _lose(error)
        return
    time.sleep(_NEWS)
    _end(code, why if code == EXIT_CODE else f"error: host {process} stopped: {why}")


def _lose(reason: Exception | str) -> None:
    _end(EXIT_CODE, _LOST.format(first_line(reason)))


def _lose_for_good(reason: str) -> NoReturn:
    _lose(reason)
    _wait_for_the_end()


def _end(code: int, why: str) -> None:
    """Ends this process, from any of its threads, unless it is ending already."""
    if _pod is None or _pod.leaving.is_set():
        return
    _pod.code = code
    _pod.leaving.set()
    print(terminal.printable(why), file=sys.stderr, flush=True)
    sys.stdout.flush()
    _tell(code, why)
    os._exit(code)


def _wait_for_the_end() -> NoReturn:
    """In a process that another of its threads is about to end."""
    time.sleep(4 * _NEWS)
    os._exit(_pod.code if _pod else 1)


def _tell(code: int, why: str) -> None:
    """Tells the other processes that this one ends, if it still can."""
    news = json.dumps([_joined().process, code, why])
    thread = threading.Thread(target=_quietly, args=[_joined().client.key_value_set, _ENDED, news], daemon=True)
    thread.start()
    thread.join(_NEWS)
    if is_first():
        time.sleep(_NEWS / 2)  # the service ends with this process: the others must have heard of it


def _all_leave() -> bool:
    with contextlib.suppress(Exception):
        _joined().client.wait_at_barrier("retrieval/leaving", A_MOMENT)
        return True
    return False


def _quietly(function: Callable, *arguments: Any) -> None:
    with contextlib.suppress(Exception):
        function(*arguments)


@contextlib.contextmanager
def _waiting() -> Iterator[None]:
    pod = _joined()
    pod.waiting = True
    try:
        yield
    finally:
        pod.waiting = False


def _ignore(*_: Any) -> None:
    """Does nothing. SIG_IGN in its place makes Python print a traceback of a signal that is on its way already."""


def _interrupt(*_: Any) -> None:
    signal.signal(signal.SIGTERM, _ignore)
    raise PreemptedError("interrupted: what was finished is kept, and the same command goes on from there")


def _forget_sigterm() -> None:
    """A worker process ends as any other does, and does not tell its parent's thread."""
    if signal.getsignal(signal.SIGTERM) is _interrupt:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _number(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None or value.isdecimal():
        return None if value is None else int(value)
    raise UserError(f"{name}='{value}': not a number; give a whole one, such as 1")
