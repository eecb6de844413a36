"""A process that measures when it is told to; `contest` is at the other end of the pipe.

    python -m benchmarks.peers.train_step '{"batch": 64, ...}'

It gets ready, and says so. Then every line that it reads is a turn, and is answered by the numbers of that turn. It
imports the standard library alone: the interpreters of the peers run it too.
"""

import json
import os
import queue
import resource
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PROCESSOR = "processor seconds"

Turn = Callable[[], Mapping[str, float]]


class MissingError(Exception):
    """Something that a system needs is not there: a library, a device, or enough of its memory."""


def serve(prepare: Callable[[Mapping[str, Any]], Turn]) -> None:
    """Makes a turn of the settings on the command line, and takes it as often as it is asked to.

    Args:
      prepare: imports what it needs only when called, so that what is missing can be told from what is broken, and
        raises `MissingError` for the rest of it, as a turn may.
        The numbers of a turn are joined by the processor time that it took, in this process and those that it started
        and waited for: where others work on the machine too, this is disturbed less than the time on the clock.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(value: Mapping[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    try:
        turn = prepare(json.loads(sys.argv[1]))
        answer({"ready": True})
        for _ in _turns():
            before = _processor_seconds()
            answer({**turn(), PROCESSOR: _processor_seconds() - before})
    except (ImportError, MissingError) as error:
        answer({"missing": str(error)})


def _turns() -> Iterator[str]:
    """The turns that are asked for. Where nobody is left to ask, even in the middle of a turn, the process ends."""
    signal.signal(signal.SIGTERM, _end)
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        # Not `sys.stdin`, which this thread would hold for ever: processes that a turn forks close it first of all.
        for line in os.fdopen(os.dup(0)):
            asked.put(line)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield asked.get()


def _end(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may come twice
    sys.exit()


def learned(scores: Sequence[float]) -> dict[str, float]:
    """What the models of several seeds have learned; nothing where none was judged."""
    if not scores:
        return {}
    deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return {"nDCG@10": statistics.mean(scores), "deviation of nDCG@10": deviation}


def tell(seed: int, speed: float, score: float | None) -> None:
    """Says how a seed went, where the terminal is: many take long, and one that is done is not lost with the rest."""
    judged = "" if score is None else f", nDCG@10 {score:.4f}"
    print(f"seed {seed}: {speed:,.1f} pairs/s{judged}", flush=True)


def reset_peak() -> None:
    """Forgets the highest memory so far."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """The highest memory of this process (resident, MB) since it began, or since `reset_peak`."""
    return _status("VmHWM")


def resident_mb() -> float:
    """The memory of this process now (resident, MB)."""
    return _status("VmRSS")


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024
