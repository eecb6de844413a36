"""What a compiled train step takes of a device: its memory, and its time by the TPU compiler's estimate.

libtpu writes `estimated_cycles` at the operations of a program that it compiles. Here they are added up by kind, those
in a loop as often as it iterates. It is an estimate: nothing overlaps in it, and nothing waits.
"""

import collections
import dataclasses
import logging
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from retrieval.training import sharding

_log = logging.getLogger(__name__)

# How compilers say that a step is too large: in every case; what it takes of what there is; the same of temporaries.
_TOO_LARGE = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|HbmOom|exceed\w* (the )?(available|hbm|memory|capacity)", re.I
)
_SIZE = r"([\d.]+)([KMGT]?)"
_ALL_OF_IT = re.compile(rf"Used {_SIZE} of {_SIZE} hbm", re.I)
_TEMPORARIES = re.compile(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)", re.I)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """What a step takes of a device.

    Attributes:
      state: bytes of parameters and optimizer state.
      arguments: bytes of state and batch.
      temporaries: bytes; None where the compiler refused the step and did not say.
      peak: bytes that are held at a time, with the arguments; None where the compiler refused the step and did not say.
      limit: bytes that a program may hold, as a compiler's refusal or a device at hand says; None else.
      refusal: what the compiler said when it gave up for want of memory; empty else.
      cycles: of a core, by kind of operation, the most first; empty where the compiler estimates none.
      kernels: calls of Pallas kernels, which `cycles` leaves out.
    """

    state: int
    arguments: int
    temporaries: int | None
    peak: int | None
    limit: int | None
    refusal: str = ""
    cycles: Mapping[str, int] = dataclasses.field(default_factory=dict)
    kernels: int = 0


def compile_step(lowered: Any, state: int, batch: int, limit: int | None) -> CompiledStep:
    """Compiles a lowered step. Where it does not fit, the result has what the compiler says about that.

    Args:
      state: its bytes on a device, as `bytes_of` gives them; `batch` as well.
      limit: as `program_limit` gives it.
    """
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if not _TOO_LARGE.search(str(error)):
            raise
        return _refused(str(error), state, state + batch, limit)
    memory = compiled.memory_analysis()
    arguments, temporaries = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    peak = arguments + memory.output_size_in_bytes - memory.alias_size_in_bytes + temporaries
    try:
        cycles, kernels = estimated(compiled.as_text())
    except jax.errors.JaxRuntimeError as error:  # of libtpu 0.0.52 for a v6e: jaxlib 0.10.2 is older
        _log.warning("plan: no estimate of time, for JAX cannot read the compiled program: %s", error)
        cycles, kernels = {}, 0
    return CompiledStep(state, arguments, temporaries, peak, limit, cycles=cycles, kernels=kernels)


def _refused(message: str, state: int, arguments: int, limit: int | None) -> CompiledStep:
    """What a compiler's refusal says; it has several wordings, some without numbers."""
    peak = temporaries = None
    if match := _ALL_OF_IT.search(message):
        peak, limit = _sizes(match)
    elif match := _TEMPORARIES.search(message):
        temporaries, limit = _sizes(match)
        peak = arguments + temporaries
    return CompiledStep(state, arguments, temporaries, peak, limit, " ".join(message.split())[:300])


def _sizes(match: re.Match) -> tuple[int, int]:
    """The two sizes of a message, in bytes."""
    needed, needed_unit, available, available_unit = match.groups()
    return int(float(needed) * _UNITS[needed_unit.upper()]), int(float(available) * _UNITS[available_unit.upper()])


def program_limit(device: sharding.Device) -> int | None:
    """What a program may hold on a device, where that is here and says so: JAX takes a share of a GPU's memory."""
    is_here = device in jax.local_devices()  # one of a topology has no memory to ask about
    return (device.memory_stats() or {}).get("bytes_limit") if is_here else None


def bytes_of(tree: Any) -> int:
    """Bytes of arrays on a device."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


# ---- The estimate, read from the text of a compiled program (HLO).

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_KERNEL = 'custom_call_target="tpu_custom_call"'
# Kind -> opcodes. The first kind of which a fusion has an operation is the fusion's.
_KINDS = {
    "matrix products": {"convolution", "dot"},
    "traffic between chips": {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"},
    "look-ups": {"gather", "scatter"},
}
_COPIES = {"copy", "transpose", "reshape"}

_HEADER = re.compile(r"(ENTRY|%\S+) .*\{$")
_OPERATION = re.compile(r"\s+(?:ROOT )?%\S+ = .*? ([a-z][a-z0-9-]*)\((.*)")
_CALLED = re.compile(r"\b(?:calls|to_apply)=(%[\w.-]+)")
_BODY = re.compile(r"\bbody=(%[\w.-]+)")
_CONDITION = re.compile(r"\bcondition=(%[\w.-]+)")
_FIRST_BRANCH = re.compile(r"\b(?:branch_computations=\{|true_computation=)(%[\w.-]+)")


_Operation = tuple[str, str]  # an opcode, and the rest: operands and attributes
_Computations = dict[str, list[_Operation]]


def estimated(text: str) -> tuple[dict[str, int], int]:
    """Cycles by kind of operation, the most first, and calls of kernels, of which the compiler has no estimate.

    Args:
      text: of a compiled program, as JAX's `as_text` gives it.
    """
    computations, cycles, kernels = _computations(text), collections.Counter(), 0
    for operation, times in _executed(computations, "ENTRY", 1):
        kernels += times * (_KERNEL in operation[1])
        if match := _CYCLES.search(operation[1]):
            cycles[_kind(computations, operation)] += times * int(match[1])
    return dict(cycles.most_common()), kernels


def _computations(text: str) -> _Computations:
    """The operations of each computation by its name; that which the program begins with is 'ENTRY'."""
    computations: _Computations = {}
    current: list[_Operation] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations[header[1]] = []
        elif match := _OPERATION.match(line):
            current.append((match[1], match[2]))
    return computations


def _executed(computations: _Computations, name: str, times: int) -> Iterator[tuple[_Operation, int]]:
    """The operations of a computation, and how often each is executed; of a fusion the fusion alone."""
    for opcode, rest in computations[name]:
        if opcode == "while":
            yield from _executed(computations, _BODY.findall(rest)[0], times * _iterations(computations, rest))
        elif opcode == "conditional":
            yield from _executed(computations, _FIRST_BRANCH.findall(rest)[0], times)
        elif opcode == "call":
            for called in _CALLED.findall(rest):
                yield from _executed(computations, called, times)
        else:
            yield (opcode, rest), times


def _iterations(computations: _Computations, loop: str) -> int:
    """How often a loop iterates: `jax.lax.scan` counts from 0 to the one number in its condition; others count once."""
    condition = computations[_CONDITION.findall(loop)[0]]
    numbers = [rest.partition(")")[0] for opcode, rest in condition if opcode == "constant"]
    is_scan = any(opcode == "compare" and "direction=LT" in rest for opcode, rest in condition)
    return int(numbers[0]) if is_scan and len(numbers) == 1 and numbers[0].isdigit() else 1


def _kind(computations: _Computations, operation: _Operation) -> str:
    """The kind of an operation or of a fusion."""
    inside = {opcode for name in _CALLED.findall(operation[1]) for opcode, _ in computations[name]}
    opcodes = {opcode.removesuffix("-start").removesuffix("-done") for opcode in inside | {operation[0]}}
    kind = next((kind for kind, names in _KINDS.items() if opcodes & names), "all else")
    return "copies" if opcodes <= _COPIES else kind
