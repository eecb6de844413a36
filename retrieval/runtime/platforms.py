"""The platforms that JAX computes on: what to say of one that does not repeat its bits, or cannot be started."""

import logging
import os
from collections.abc import Iterator
from types import TracebackType

_log = logging.getLogger(__name__)

# The module in which JAX starts platforms. Its errors have no type of their own.
_STARTS = "jax._src.xla_bridge"

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
    """What to tell people about an error, if JAX raised it because it cannot start a platform. None for others."""
    if not any(_is_of_start(cause.__traceback__) for cause in _causes(error)):
        return None
    wanted = os.environ.get("JAX_PLATFORMS")
    what = f"what JAX_PLATFORMS={wanted} names" if wanted else "any platform"
    said = next(iter(str(error).strip().splitlines()), "there is no such device, or JAX was installed without it")
    why = said.partition(" (set JAX_PLATFORMS")[0][:200]
    return f"JAX cannot start {what} ({why}): set JAX_PLATFORMS=cpu, or unset it, and JAX takes what there is"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_of_start(trace: TracebackType | None) -> bool:
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == _STARTS:
            return True
        trace = trace.tb_next
    return False
