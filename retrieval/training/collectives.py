"""What chips send each other in a compiled program, counted in its text (HLO).

The traced program cannot tell: the compiler decides which values pass between devices. Where the text does not say how
much a collective sends, it counts as nothing, and a loop without a known end counts once: the number is a lower bound.
"""

import collections
import functools
import math
import re
from collections.abc import Sequence

import numpy as np

from retrieval.training.compiled_program import Computation, Instruction, read, turns

_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[((?:'\w+'=\d+,?)+)\](?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))? \{((?:'\w+',? ?)*)\}"
)


def received(text: str, chips: Sequence[int]) -> float:
    """The bytes that a chip receives from others, at least, on average over the chips.

    A sum over m chips passes each byte on 2 (m - 1) times in total, a gathering or a scattered sum m - 1 times: no
    algorithm does with less (Patarasuk & Yuan 2009). What the cores of one chip exchange does not count.

    Args:
      text: of a compiled program, as JAX's `as_text` gives it.
      chips: the number of the chip of each device, in the order of the program's partitions.
    """
    return _Program(text, chips).bytes_of("ENTRY") / len(set(chips))


class _Program:
    def __init__(self, text: str, chips: Sequence[int]):
        self._computations = read(text)
        self._chips = np.asarray(chips)
        self.bytes_of = functools.cache(self._bytes_of)

    def _bytes_of(self, name: str) -> float:
        """The bytes that pass from chip to chip while a computation runs once."""
        computation = self._computations[name]
        return sum(self._bytes(computation, instruction) for instruction in computation.instructions.values())

    def _bytes(self, computation: Computation, one: Instruction) -> float:
        kind = one.opcode.removesuffix("-start")
        if kind in _SENT or kind == "collective-permute":
            return 0.0 if _goes_on(computation, one) else self._sent(kind, computation, one)
        if one.opcode == "while":
            return turns(self._computations, computation, one) * self.bytes_of(one.attribute("body"))
        if one.opcode == "conditional":
            return min(map(self.bytes_of, one.branches))
        if one.opcode in ("call", "fusion", "async-start"):
            return sum(map(self.bytes_of, one.called))
        return 0.0

    def _sent(self, kind: str, computation: Computation, one: Instruction) -> float:
        size = sum(_size(computation.instructions[name].type) for name in one.inputs)
        if kind == "collective-permute":
            pairs = _PAIR.findall(one.attributes.partition("source_target_pairs=")[2].partition("}}")[0] + "}")
            return size * sum(self._chips[int(source)] != self._chips[int(target)] for source, target in pairs)
        groups = _groups(one.attributes, len(self._chips))
        return sum(_SENT[kind](size, list(collections.Counter(self._chips[group]).values())) for group in groups)


def _all_to_all(size: float, cores: Sequence[int]) -> float:
    return size / sum(cores) * sum(count * (sum(cores) - count) for count in cores)


# Bytes that pass between the chips of a group, by what each device puts in and how many devices each chip has in it.
_SENT = {
    "all-reduce": lambda size, cores: 2 * (len(cores) - 1) * size,
    "reduce-scatter": lambda size, cores: (len(cores) - 1) * size,
    "all-gather": lambda size, cores: sum(cores) * (len(cores) - 1) * size,
    "all-to-all": _all_to_all,
}


def _goes_on(computation: Computation, one: Instruction) -> bool:
    """Whether it is a part of a collective that another fusion starts, as a TPU's compiler writes it."""
    is_part = "async_collective_fusion_config" in one.attributes
    return is_part and not any(
        "AsyncCollectiveStart" in other.attributes for other in computation.instructions.values()
    )


def _groups(attributes: str, devices: int) -> list[np.ndarray]:
    """The partitions of each group, in each of the ways that a compiler writes them; none where it is another."""
    if match := _LISTED.search(attributes):
        listed = [np.array(_numbers(group)) for group in re.findall(r"\{([\d,]+)\}", match[1])]
        return listed or [np.arange(devices)]
    if match := _IOTA.search(attributes):
        return list(_transposed(devices, match[2], match[3]).reshape(_numbers(match[1])))
    if match := _MESH.search(attributes):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", match[1])}
        over = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", match[4])]
        rest = [axis for axis in range(len(sizes)) if axis not in over]
        mesh = _transposed(devices, match[2], match[3]).reshape(list(sizes.values())).transpose(rest + over)
        return list(mesh.reshape(-1, math.prod(mesh.shape[len(rest) :])))
    return []


def _transposed(devices: int, shape: str | None, order: str | None) -> np.ndarray:
    """The devices in their order; in another shape and with another order of its axes, where these are given."""
    array = np.arange(devices).reshape(_numbers(shape or str(devices)))
    return array.transpose(_numbers(order)) if order else array


def _size(type: str) -> float:
    """Bytes of the arrays of a type, of which 'pred' has no number of bits in its name."""
    arrays = _ARRAY.findall(type)
    return sum(math.prod(_numbers(shape)) * int(bits or 8) / 8 for _, bits, shape in arrays)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
