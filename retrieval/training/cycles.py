"""What a compiled step takes by the TPU compiler's own estimate.

libtpu writes `estimated_cycles` at the operations of a program that it compiles. Here they are added up by kind, those
in a loop as often as it turns. It is an estimate. Nothing overlaps in it, and nothing waits.
"""

import collections
import re
from collections.abc import Iterator

from retrieval.training.compiled_program import Computation, Instruction, read, turns

_KERNEL = 'custom_call_target="tpu_custom_call"'
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# Kind -> opcodes. The first kind of which a fusion has an operation is the fusion's.
_KINDS = {
    "matrix products": {"convolution", "dot"},
    "traffic between chips": {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"},
    "look-ups": {"gather", "scatter"},
}


def estimated(text: str) -> dict[str, int]:
    """The cycles of a step by kind, the most first; empty where the compiler wrote none.

    Args:
      text: of a program that libtpu compiled, as JAX's `as_text` gives it.
    """
    computations, cycles = read(text), collections.Counter()
    for one, times in _executed(computations, "ENTRY", 1):
        if match := _CYCLES.search(one.attributes):
            cycles[_kind(computations, one)] += times * int(match[1])
    return dict(cycles.most_common())


def kernels(text: str) -> int:
    """How many calls of kernels (Pallas) a step has: the compiler has no estimate of those.

    Args:
      text: as above.
    """
    computations = read(text)
    return sum(times for one, times in _executed(computations, "ENTRY", 1) if _KERNEL in one.attributes)


def _executed(computations: dict[str, Computation], name: str, times: int) -> Iterator[tuple[Instruction, int]]:
    """The instructions of a computation, and how often each is executed; of a fusion the fusion alone."""
    computation = computations[name]
    for one in computation.instructions.values():
        if one.opcode == "while":
            count = times * turns(computations, computation, one)
            yield from _executed(computations, one.attribute("body"), count)
        elif one.opcode == "conditional":
            yield from _executed(computations, one.branches[0], times)
        elif one.opcode == "call":
            for called in one.called:
                yield from _executed(computations, called, times)
        else:
            yield one, times


def _kind(computations: dict[str, Computation], one: Instruction) -> str:
    """The kind of an operation or of a fusion."""
    inside = {each.opcode for name in one.called for each in computations[name].instructions.values()}
    opcodes = {opcode.removesuffix("-start").removesuffix("-done") for opcode in inside | {one.opcode}}
    kind = next((kind for kind, names in _KINDS.items() if opcodes & names), "all else")
    return "copies" if opcodes <= {"copy", "transpose", "reshape"} else kind
