"""What a compiled step takes by the TPU compiler's own estimate.

libtpu writes `estimated_cycles` at the operations of a program that it compiles. Here they are added up by kind, those
in a loop as often as it turns. It is an estimate. Nothing overlaps in it, and nothing waits.
"""

import collections
import re

from retrieval.training.compiled_program import Computation, Instruction, read, turns

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

    def add(name: str, times: int) -> None:
        computation = computations[name]
        for one in computation.instructions.values():
            if one.opcode == "while":
                add(one.attribute("body"), times * turns(computations, computation, one))
            elif one.opcode == "conditional":
                add(one.branches[0], times)
            elif one.opcode == "call":
                for called in one.called:
                    add(called, times)
            elif match := _CYCLES.search(one.attributes):
                cycles[_kind(computations, one)] += times * int(match[1])

    add("ENTRY", 1)
    return dict(cycles.most_common())


def _kind(computations: dict[str, Computation], one: Instruction) -> str:
    """The kind of an operation or of a fusion."""
    inside = {each.opcode for name in one.called for each in computations[name].instructions.values()}
    opcodes = {opcode.removesuffix("-start").removesuffix("-done") for opcode in inside | {one.opcode}}
    kind = next((kind for kind, names in _KINDS.items() if opcodes & names), "all else")
    return "copies" if opcodes <= {"copy", "transpose", "reshape"} else kind
