"""Programs of several threads on the devices of a process."""

import contextlib
import threading

import jax

_ONE = threading.Lock()


def alone() -> contextlib.AbstractContextManager:
    """What a thread holds from the dispatch of a program to its end, where no other one may run beside it.

    Fake CPU devices share few cores, and programs dispatched ahead of each other deadlock in their collectives. On a
    GPU XLA records the kernels of two threads' programs as one graph, and the process crashes.
    """
    backend = jax.default_backend()
    return _ONE if backend == "gpu" or (backend == "cpu" and jax.device_count() > 1) else contextlib.nullcontext()
