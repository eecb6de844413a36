"""The platforms that JAX computes on: what to say of one that does not repeat its bits, or cannot be started."""

import logging
import os
from typing import Any

from retrieval.errors import UserError
from retrieval.runtime import pod

_log = logging.getLogger(__name__)

_DETERMINISTIC = "--xla_gpu_deterministic_ops"


def tell_of_bits(platform: str) -> None:
    """Tells the log where a program does not give the same bits again: on GPUs, unless XLA_FLAGS ask for that."""
    flags = (flag.partition("=") for flag in os.environ.get("XLA_FLAGS", "").split())
    asked = any(name == _DETERMINISTIC and value.lower() in ("", "true", "1") for name, _, value in flags)
    if platform in ("gpu", "cuda", "rocm") and not asked:
        _log.info(
            "on GPUs a run that was stopped and goes on ends nearly the same; with XLA_FLAGS=%s=true it ends equal to "
            "the bit, at about half of the speed",
            _DETERMINISTIC,
        )


def explained(error: BaseException) -> str | None:
    """What to tell people about an error that JAX raised because it cannot start a platform. None for others."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    if trace is None or not trace.tb_frame.f_globals.get("__name__", "").startswith("jax."):
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
        said = next(iter(str(error).strip().splitlines()), "there is no such device, or JAX was installed without it")
        why = said.partition(" (set JAX_PLATFORMS")[0][:200]
        raise UserError(
            f"JAX cannot start {what} ({why}): set JAX_PLATFORMS=cpu, or unset it, and JAX takes what there is"
        ) from error
