"""The text of a compiled program (HLO): its computations, their instructions, and how often a loop turns."""

import dataclasses
import math
import re

_INSTRUCTION = re.compile(r"\s*(ROOT )?(%\S+) = (.*)")
_OPCODE = re.compile(r" ([a-z][a-z0-9-]*)\(([^)]*)\)")
_NAME = re.compile(r"%[\w.-]+")
_CALLED = re.compile(r"\b(?:calls|to_apply)=(%[\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|true_computation=(%[\w.-]+), false_computation=(%[\w.-]+)")
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CARRIED = ("copy", "bitcast", "convert", "copy-done", "copy-start")  # opcodes that keep a value as it is


@dataclasses.dataclass(frozen=True)
class Instruction:
    """NAME = TYPE OPCODE(OPERANDS), ATTRIBUTES."""

    name: str
    type: str
    opcode: str
    operands: str
    attributes: str

    @property
    def inputs(self) -> list[str]:
        return _NAME.findall(self.operands)

    @property
    def called(self) -> list[str]:
        """The computations that a call or a fusion runs."""
        return _CALLED.findall(self.attributes)

    @property
    def branches(self) -> list[str]:
        """The computations of a conditional, of which one runs."""
        match = _BRANCHES.search(self.attributes)
        assert match, f"a conditional without branches: {self.attributes}"
        return _NAME.findall(" ".join(filter(None, match.groups())))

    def attribute(self, name: str) -> str:
        """The name or number that an attribute has."""
        match = re.search(rf"\b{name}=(%?[\w.-]+)", self.attributes)
        assert match, f"{self.name} has no {name}"
        return match[1]


@dataclasses.dataclass
class Computation:
    """Instructions by name, and the one whose value the computation gives."""

    instructions: dict[str, Instruction] = dataclasses.field(default_factory=dict)
    root: Instruction | None = None

    def input(self, instruction: Instruction | None, number: int) -> Instruction | None:
        """The instruction that gives an operand, without copies on the way; None where there is none."""
        inputs = instruction.inputs if instruction else []
        given = self.instructions.get(inputs[number]) if number < len(inputs) else None
        return self.input(given, 0) if given and given.opcode in _CARRIED else given

    def constant(self, instruction: Instruction | None, number: int) -> int | None:
        """The operand, where it is a constant integer."""
        operand = self.input(instruction, number)
        if operand and operand.opcode == "constant" and re.fullmatch(r"-?\d+", operand.operands):
            return int(operand.operands)
        return None


def read(text: str) -> dict[str, Computation]:
    """The computations by name; that which the program begins with as 'ENTRY'."""
    computations: dict[str, Computation] = {}
    current = Computation()
    for line in text.splitlines():
        if line.endswith("{") and line.startswith(("%", "ENTRY ")):
            current = computations[line.split()[0]] = Computation()
        elif (match := _INSTRUCTION.match(line)) and (opcode := _OPCODE.search(match[3])):
            rest = match[3]
            one = Instruction(match[2], rest[: opcode.start()], opcode[1], opcode[2], rest[opcode.end() :])
            current.instructions[one.name] = one
            current.root = one if match[1] else current.root
    return computations


def turns(computations: dict[str, Computation], outer: Computation, loop: Instruction) -> int:
    """How often a loop turns: as the compiler notes it, or from the counter that it compares; 1 where neither tells."""
    if known := _TURNS.search(loop.attributes):
        return int(known[1])
    condition, body = (computations[loop.attribute(name)] for name in ("condition", "body"))
    test = condition.root
    counter = condition.input(test, 0)
    if not (test and counter and counter.opcode == "get-tuple-element" and "direction=LT" in test.attributes):
        return 1
    index = int(counter.attribute("index"))
    end, start = condition.constant(test, 1), outer.constant(outer.input(loop, 0), index)
    following = body.input(body.root, index)
    before, step = body.input(following, 0), body.constant(following, 1)
    if end is None or start is None or not step or not (following and following.opcode == "add"):
        return 1
    if not (before and before.opcode == "get-tuple-element" and int(before.attribute("index")) == index):
        return 1
    return max(0, math.ceil((end - start) / step))
