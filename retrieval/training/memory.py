"""What compilation leaves in the heap is given back before the program runs.

XLA frees what it compiled with, some 450 MB of a train step's, and glibc keeps most of it: a process has its highest
memory in the first step, on top of that.
"""

import ctypes
import functools

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_LONG = 1.0  # seconds: what compiles faster leaves little


@functools.cache
def trim_after_compiling() -> None:
    """From now on, in this process, wherever the C library can do it (glibc, so Linux)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return

    def on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED and duration_secs >= _LONG:
            trim(0)

    jax.monitoring.register_event_duration_secs_listener(on_duration)
