"""The devices and the memory of this process: what platform it computes on, its compiled programs, and large pages."""

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from retrieval.common.errors import UserError, first_line
from retrieval.common.runtime import pod, signals

_log = logging.getLogger(__name__)

_DETERMINISTIC = "--xla_gpu_deterministic_ops"
_MOST = 8 << 30  # bytes of compiled programs: from there on what was not used for longest goes
_LEAST = 0.1  # seconds of a CPU's compilation from which on its program is kept
_DIRECTORY, _MOST_FIELD = "jax_compilation_cache_dir", "jax_compilation_cache_max_size"
_PAGES, _LARGE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
_ONE = threading.Lock()
_COMPILED = "/jax/core/compile/backend_compile_duration"
_LONG = 1.0  # seconds: what compiles faster leaves little


def tell_of_bits(kind: str) -> None:
    """Tells the log where a program does not give the same bits again: on GPUs, unless XLA_FLAGS ask for that."""
    flags = (flag.partition("=") for flag in os.environ.get("XLA_FLAGS", "").split())
    is_set = any(name == _DETERMINISTIC and value.lower() in ("", "true", "1") for name, _, value in flags)
    if kind in ("gpu", "cuda", "rocm") and not is_set:
        _log.info(
            "on GPUs a run that was stopped and goes on ends nearly the same; with XLA_FLAGS=%s=true it ends equal to "
            "the bit, at about half of the speed",
            _DETERMINISTIC,
        )


def explained(error: BaseException) -> str | None:
    """What to tell people about an error that JAX raised because it cannot start a platform. None for others."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or not frames[-1].f_globals.get("__name__", "").startswith("jax."):
        return None
    try:
        _start()
    except UserError as reason:
        return str(reason)
    return None


def check(_: Any) -> None:
    """Checks that there is a device to compute on, for a stage; the hosts of a pod start theirs together.

    Raises:
      UserError: JAX cannot start what JAX_PLATFORMS names.
    """
    if pod.current() is None:
        _start()


def _start() -> None:
    import jax

    try:
        jax.devices()
    except Exception as error:  # of several types, of which one is an AssertionError without a text
        wanted = os.environ.get("JAX_PLATFORMS")
        what = f"what JAX_PLATFORMS={wanted} names" if wanted else "any platform"
        why = first_line(str(error) or "there is no such device, or JAX was installed without it")
        why = why.partition(" (set JAX_PLATFORMS")[0]
        remedy = "set JAX_PLATFORMS=cpu, or unset it, and JAX takes what there is"
        raise UserError(f"JAX cannot start {what} ({why}): {remedy}") from error


def alone() -> contextlib.AbstractContextManager:
    """What a thread holds from the dispatch of a program to its end, where no other one may run beside it.

    Fake CPU devices share few cores, and programs dispatched ahead of each other deadlock in their collectives. On a
    GPU XLA records the kernels of two threads' programs as one graph, and the process crashes.
    """
    import jax

    backend = jax.default_backend()
    return _ONE if backend == "gpu" or (backend == "cpu" and jax.device_count() > 1) else contextlib.nullcontext()


@functools.cache
def keep_programs() -> None:
    """Has compiled programs kept in the user's cache; JAX_COMPILATION_CACHE_DIR is another folder, or '' none.

    A train step of BERT's size takes a GPU a minute to compile, and what embeds a query a CPU a second. What is
    compiled for one processor may fail on another one that has the same home: each kind has a folder of its own.
    """
    import jax

    is_set = _DIRECTORY.upper() in os.environ or getattr(jax.config, _DIRECTORY)
    if is_set or not importlib.util.find_spec("filelock"):
        return
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    place = os.path.join(cache, "retrieval", "programs")
    if jax.default_backend() == "cpu":
        place = os.path.join(place, _processor())
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST)
    jax.config.update(_DIRECTORY, place)
    jax.config.update(_MOST_FIELD, _MOST)


def _processor() -> str:
    """A hash of the name of this machine's processor, and of what it can do."""
    first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    lines = [line for line in first.splitlines() if line.startswith(("model name", "flags", "Features", "CPU p"))]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=6).hexdigest()


def keep_programs_at(place: str) -> None:
    """As `keep_programs`, from now on in a folder on a store, where other hosts and later machines find them."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if _DIRECTORY.upper() not in os.environ and jax.default_backend() != "cpu":
        compilation_cache.reset_cache()  # JAX may have opened another one
        jax.config.update(_DIRECTORY, place)
        jax.config.update(_MOST_FIELD, -1)  # what is deleted would take locks


@functools.cache
def trim_after_compiling() -> None:
    """From now on, in this process, gives back what compilation leaves in the heap, where the C library can (glibc).

    XLA frees what it compiled with, some 450 MB of a train step's, and glibc keeps most of it: a process has its
    highest memory in the first step, on top of that.
    """
    import jax

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return

    def on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED and duration_secs >= _LONG:
            trim(0)

    jax.monitoring.register_event_duration_secs_listener(on_duration)


def restart_with_large_pages() -> None:
    """Starts this program again, in its own process, unless it has large pages or the C library knows none.

    A program must ask for them before it starts. XLA takes the memory of a step anew every time. In pages of 4 KB, each
    step of a small model costs 90,000 page faults, and takes 1.4 times as long on a CPU.

    Whoever sets GLIBC_TUNABLES, be it to nothing, is not overruled.
    """
    if _PAGES in os.environ or platform.libc_ver()[0] != "glibc" or not sys.executable or "-" in sys.orig_argv:
        return
    os.environ[_PAGES] = _LARGE
    sys.stdout.flush()
    sys.stderr.flush()
    signals.hold()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
