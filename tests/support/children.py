"""Processes that start at once, as copies of one that has imported what takes seconds: TensorFlow, JAX and Orbax.

Each is a process of its own, with its own backends, and can be killed. The one that is copied has only imported: it has
no thread whose locks a copy could inherit, no JAX backend and no compiled program.
"""

import importlib.metadata
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

# Small programs, seldom run: most of their time goes into compiling them, a third of it so.
XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones end at a flag that is gone
    XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false"
    # Eight devices on a busy machine may meet late, and XLA would end the process after 40 seconds.
    XLA_FLAGS += " --xla_cpu_collective_call_terminate_timeout_seconds=600"

FORK_SERVER = multiprocessing.get_context("forkserver")
# By its name from the folder where the tests start: before Python 3.13 the server has no other path.
FORK_SERVER.set_forkserver_preload(["tests.support.preloaded"])


class Strike(NamedTuple):
    """What a process does to itself: so many seconds after one of these files or folders is there, it gets a signal."""

    landmarks: Sequence[Path] = ()
    after: float = 0.0
    signal: int = signal.SIGKILL


def run(
    arguments: Sequence[str],
    log: Path,
    strike: Strike | None = None,
    xla_flags: str = XLA_FLAGS,
    folder: Path | None = None,
) -> int:
    """The exit code of `retrieval.main` in a process.

    Args:
      log: the file that it writes to in place of the terminal; with it, when it is struck: "struck at SECONDS".
      xla_flags: those of one device by default.
      folder: where it runs, and looks for modules first, as `python -m` does.
    """
    child = FORK_SERVER.Process(target=_run, args=(arguments, log, strike, xla_flags, folder))
    child.start()
    child.join()
    return child.exitcode


def _run(arguments: Sequence[str], log: Path, strike: Strike | None, xla_flags: str, folder: Path | None) -> None:
    if folder:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
    from retrieval import cli, main
    from support import small_pipelines  # noqa: F401

    with log.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    os.environ["XLA_FLAGS"] = xla_flags
    if strike:
        threading.Thread(target=_strike, args=strike, daemon=True).start()
    sys.argv[1:] = arguments
    cli.run(main.main)


def _strike(landmarks: Sequence[Path], after: float, signal_number: int) -> None:
    while landmarks and not any(path.exists() for path in landmarks):
        time.sleep(0.01)
    time.sleep(after)
    print("struck at", time.monotonic(), flush=True)
    os.kill(os.getpid(), signal_number)


def returned(function: Callable[[], Any]) -> Any:
    """What a function of a module returns in a process that no other test has touched."""
    ours, theirs = FORK_SERVER.Pipe(duplex=False)
    child = FORK_SERVER.Process(target=_send, args=(theirs, function))
    child.start()
    theirs.close()
    value = ours.recv()
    child.join()
    return value


def _send(pipe: Connection, function: Callable[[], Any]) -> None:
    pipe.send(function())


def tell_and_sleep(output: Path) -> None:
    """A task for `local_runner` that does not end by itself."""
    os.write(1, b"working\n")  # at once: several tasks write into one pipe
    time.sleep(60)
