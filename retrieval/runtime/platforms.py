"""The platforms that JAX computes on, and what to say where one of them cannot be started."""

import os
from collections.abc import Iterator
from types import TracebackType

# The module in which JAX starts platforms. Its errors have no type of their own.
_STARTS = "jax._src.xla_bridge"


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
