"""What a compiled step takes of a device's memory, also where the compiler refuses it for that."""

import dataclasses
import logging
import math
import re
from typing import Any

import jax

from retrieval.training import sharding

_log = logging.getLogger(__name__)

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
# How compilers say that a step is too large, with the bytes that it takes and those that there are.
_ALL_OF_IT = re.compile(rf"Used {_SIZE} of {_SIZE} hbm", re.IGNORECASE)
_TEMPORARIES = re.compile(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|HbmOom|exceed\w* (the )?(available|hbm|memory|capacity)", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on a device.

    Attributes:
      state: parameters and what the optimizer keeps for them.
      arguments: state and batch.
      temporaries: None where the compiler refused the step and did not say.
      peak: the most that is held at a time, with the arguments; None where the compiler refused the step and did not
        say.
      limit: what a program may hold, as the compiler says where it refuses one, or a device that is here; None else.
      refusal: what the compiler said when it gave up, as its program would need more than there is; empty else.
    """

    state: int
    arguments: int
    temporaries: int | None
    peak: int | None
    limit: int | None = None
    refusal: str = ""


def compile_step(lowered: Any, state: int, batch: int, limit: int | None) -> tuple[Memory, str]:
    """The memory of a step, also where the compiler refuses it, and the compiled program's text.

    The text is empty where the compiler refuses the step, or where JAX cannot read its program.

    Args:
      state: bytes of it on a device; `batch` as well.
      limit: what the device itself says.
    """
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if not _OUT_OF_MEMORY.search(str(error)):
            raise
        return _refused(str(error), state, state + batch, limit), ""
    analysis = compiled.memory_analysis()
    arguments, temporaries = analysis.argument_size_in_bytes, analysis.temp_size_in_bytes
    held = arguments + analysis.output_size_in_bytes - analysis.alias_size_in_bytes + temporaries
    return Memory(state, arguments, temporaries, held, limit), _text(compiled)


def _text(compiled: Any) -> str:
    try:
        return compiled.as_text()
    except jax.errors.JaxRuntimeError as error:  # of libtpu 0.0.52 for a v6e: jaxlib 0.10.2 is older
        _log.warning("traffic between chips is not counted, JAX cannot read the compiled program: %s", error)
        return ""


def _refused(message: str, state: int, arguments: int, limit: int | None) -> Memory:
    """What a compiler's refusal tells; it has several wordings, some without numbers."""
    words = " ".join(message.split())[:300]
    if match := _ALL_OF_IT.search(message):
        peak, limit = _sizes(match)
        return Memory(state, arguments, None, peak, limit, words)
    if match := _TEMPORARIES.search(message):
        temporaries, limit = _sizes(match)
        return Memory(state, arguments, temporaries, arguments + temporaries, limit, words)
    return Memory(state, arguments, None, None, limit, words)


def _sizes(match: re.Match) -> list[int]:
    """The two sizes of a message, in bytes."""
    return [int(float(match[at]) * _UNITS[match[at + 1].upper()]) for at in (1, 3)]


def program_limit(device: sharding.Device) -> int | None:
    """What a program may hold on a device, where that is here and says so: JAX takes a share of a GPU's memory."""
    here = device in jax.local_devices()  # one of a topology has no memory to ask about
    return (device.memory_stats() or {}).get("bytes_limit") if here else None


def bytes_of(tree: Any) -> int:
    """Bytes of arrays on a device."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
