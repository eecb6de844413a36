"""What a train step takes on some devices, as a table for people."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from retrieval.stages.plan_collection import Part, gib
from retrieval.stages.plan_indexes import PlannedIndex
from retrieval.training.chips import Chip
from retrieval.training.step_memory import Memory
from retrieval.training.work import Work


@dataclasses.dataclass(frozen=True)
class Plan:
    """A train step on some devices.

    Attributes:
      chip: None where it is not in the table of chips, such as a CPU.
      work: of a device in a step.
      received: bytes that a chip receives from others in a step, at least; None where no compiled step can be read.
      useful: operations of a device if nothing were computed twice.
      cycles: of a core in a step, by kind of operation, as the compiler estimates them; empty where it does not.
      kernels: calls of kernels in a step, which `cycles` leaves out.
      collection: what the passages of `plan.passages` take, on all devices.
      indexes: what its indexes take on a host.
      rate: operations a second of the devices at hand together, at most; None where the plan is for others.
      measured: seconds of a step on them; None where it was not run.
    """

    kind: str
    chip: Chip | None
    data: int
    fsdp: int
    parameters: int
    batch_size: int
    steps: int
    memory: Memory
    work: Work
    received: float | None
    useful: float
    cycles: dict[str, int]
    kernels: int = 0
    collection: tuple[Part, ...] = ()
    indexes: tuple[PlannedIndex, ...] = ()
    rate: float | None = None
    measured: float | None = None

    @property
    def devices(self) -> int:
        """Devices as JAX counts them: of some chips each core is one."""
        return self.data * self.fsdp

    @property
    def chips(self) -> int:
        """Chips that the devices make up."""
        return self.devices // self.chip.cores if self.chip else self.devices

    @property
    def hbm(self) -> int | None:
        """Bytes that a device has, by its maker."""
        return self.chip and self.chip.memory // self.chip.cores

    @property
    def room(self) -> int | None:
        """Bytes of it that the step may take; what is set aside is known where a compiler or a device says so."""
        return self.memory.limit or self.hbm

    @property
    def fits(self) -> bool | None:
        """Whether a device can hold the step; None where its memory is not known."""
        if self.memory.refusal:
            return False
        return None if self.room is None or self.memory.peak is None else self.memory.peak <= self.room

    @property
    def estimate(self) -> float | None:
        """Seconds of a step as the compiler estimates them; None without all of its kernels, or without a clock."""
        total = sum(self.cycles.values())
        return total / self.chip.clock if total and self.chip and self.chip.clock and not self.kernels else None

    @property
    def cost(self) -> float:
        """Of an example: seconds by the compiler's estimate, or by the bounds; operations where the chip is unknown."""
        return (self.estimate or max(self.seconds.values(), default=self.devices * self.work.flops)) / self.batch_size

    @property
    def cost_by(self) -> str:
        """What says `cost`: only costs by the same thing can be compared."""
        if self.estimate:
            return "the compiler's estimate"
        return "the bounds" if self.seconds else "operations"

    @property
    def seconds(self) -> dict[str, float]:
        """The least time of a step by what may limit it; empty where neither the chip nor a rate is known."""
        if self.chip is None:
            return {"matrix products": self.devices * self.work.flops / self.rate} if self.rate else {}
        seconds = {
            "matrix products": self.chip.cores * self.work.flops / self.chip.peak_flops,
            "memory traffic": self.chip.cores * self.work.bytes / self.chip.bandwidth,
        }
        if self.chip.interconnect and self.received is not None:
            seconds["traffic between chips"] = self.received / self.chip.interconnect
        return seconds

    def table(self) -> list[tuple[str, Any]]:
        """Name and value, for people."""
        cores = f", {self.chip.cores} per chip" if self.chip and self.chip.cores > 1 else ""
        rows = [
            ("devices", f"{self.devices} x {self.kind}{cores}"),
            ("mesh", f"data {self.data} x fsdp {self.fsdp}"),
            ("parameters", self.parameters),
            ("a device: parameters and optimizer state", gib(self.memory.state)),
            ("a device: arguments of the step", gib(self.memory.arguments)),
            ("a device: temporaries", gib(self.memory.temporaries)),
            ("a device: peak", gib(self.memory.peak)),
            ("a device: memory", gib(self.hbm)),
            ("a device: memory that a program may use", gib(self.memory.limit)),
            ("fits", {True: "yes", False: "no", None: None}[self.fits]),
            ("operations of a step", f"{self.devices * self.work.flops:.4g}"),
            ("of these computed a second time", f"{1 - self.useful / self.work.flops:.1%}"),
            ("a chip: bytes from other chips in a step, at least", _gb(self.received)),
        ]
        rows += [(f"a step at the peak of {name}", f"{seconds:.3f} s") for name, seconds in self.seconds.items()]
        if self.seconds:
            least = max(self.seconds.values())
            hours = self.steps * least / 3600
            rows += [
                ("examples per second, at most", round(self.batch_size / least)),
                (f"hours to step {self.steps:,}, at least", f"{hours:.1f}"),
                ("chip-hours, at least", f"{self.chips * hours:,.0f}"),
            ]
        rows += [*self._estimate(), *self._measured(), *self._collection()]
        return [(name, value) for name, value in rows if value is not None]

    def _measured(self) -> Iterator[tuple[str, str]]:
        """Rows of a step that was run here."""
        if self.measured:
            yield "a step here, measured", f"{self.measured:.3f} s"
            yield "examples per second here", f"{self.batch_size / self.measured:,.0f}"
            yield f"hours to step {self.steps:,} here", f"{self.steps * self.measured / 3600:.1f}"

    def _collection(self) -> Iterator[tuple[str, str | None]]:
        """Rows of what a collection takes."""
        for part in self.collection:
            yield from part.rows(self.chip, self.chips, self.rate)
        for index in self.indexes:
            yield from index.rows()
        if self.collection and self.indexes:
            held = 4 * self.parameters + sum(index.cost.held for index in self.indexes)
            yield "to serve, a host: towers and indexes", gib(held)

    def _estimate(self) -> Iterator[tuple[str, str]]:
        """Rows of what the compiler estimates; it knows no waiting, and nothing at the same time."""
        total = sum(self.cycles.values())
        if total and self.chip and self.chip.clock:
            seconds = total / self.chip.clock
            yield "a step by the compiler's estimate", f"{seconds:.3f} s"
            if self.kernels:
                yield "calls of kernels (fused attention) that it leaves out", f"{self.kernels}: a step takes longer"
            for kind, count in self.cycles.items():
                yield f"of it {kind}", f"{count / total:.1%}"
            if self.estimate:
                yield f"hours to step {self.steps:,} by the estimate", f"{self.steps * seconds / 3600:.1f}"


def _gb(count: float | None) -> str | None:
    return None if count is None else f"{count / 1e9:.3g} GB"
