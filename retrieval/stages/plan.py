"""The stage `plan`: the real train step, compiled ahead of time for machines that are not there.

Nothing is allocated: parameters, optimizer state and batches are shapes. For a TPU topology the package libtpu
compiles, which needs no TPU.
"""

import dataclasses
import importlib.util
import logging
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval import files
from retrieval.errors import UserError, unknown_name
from retrieval.evaluation import display
from retrieval.stages import examples, states
from retrieval.stages import model as models
from retrieval.stages.run import Run
from retrieval.training import chips, sharding, work
from retrieval.training.chips import Chip
from retrieval.training.work import Work

_log = logging.getLogger(__name__)

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_ROOM = 0.9  # the share of the memory that advice fills: its estimates are rough


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on a device.

    Attributes:
      state: parameters and what the optimizer keeps for them.
      arguments: state and batch.
      temporaries: None where the compiler refused the step before it knew.
      peak: the most that is held at a time, with the arguments.
      limit: what a program may hold, as the compiler says where it refuses one, or a device that is here; None else.
    """

    state: int
    arguments: int
    temporaries: int | None
    peak: int
    limit: int | None = None

    @property
    def refused(self) -> bool:
        """Whether the compiler gave up, as its program would need more than there is."""
        return self.temporaries is None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A train step on some devices.

    Attributes:
      chip: None where it is not in the table of chips, such as a CPU.
      work: of a device in a step.
      useful: operations of a device if nothing were computed twice.
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
    useful: float

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
        if self.memory.refused:
            return False
        return None if self.room is None else self.memory.peak <= self.room

    @property
    def seconds(self) -> dict[str, float]:
        """The least time of a step by what may limit it; empty where the chip is not known."""
        if self.chip is None:
            return {}
        seconds = {
            "matrix products": self.work.flops / self.chip.peak_flops,
            "memory traffic": self.work.bytes / self.chip.bandwidth,
        }
        if self.chip.interconnect:
            seconds["traffic between devices"] = self.work.received / self.chip.interconnect
        return {name: self.chip.cores * value for name, value in seconds.items()}

    def table(self) -> list[tuple[str, Any]]:
        """Name and value, for people."""
        cores = f", {self.chip.cores} per chip" if self.chip and self.chip.cores > 1 else ""
        rows = [
            ("devices", f"{self.devices} x {self.kind}{cores}"),
            ("mesh", f"data {self.data} x fsdp {self.fsdp}"),
            ("parameters", self.parameters),
            ("a device: parameters and optimizer state", _gib(self.memory.state)),
            ("a device: arguments of the step", _gib(self.memory.arguments)),
            ("a device: temporaries", _gib(self.memory.temporaries)),
            ("a device: peak", _gib(self.memory.peak)),
            ("a device: memory", _gib(self.hbm)),
            ("a device: memory that a program may use", _gib(self.memory.limit)),
            ("fits", {True: "yes", False: "no", None: None}[self.fits]),
            ("operations of a step", f"{self.devices * self.work.flops:.4g}"),
            ("of these computed a second time", f"{1 - self.useful / self.work.flops:.1%}"),
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
        return [(name, value) for name, value in rows if value is not None]


def plan(run: Run) -> dict[str, Any]:
    """Compiles the train step for `config.plan.topology`, prints what it takes and writes `plan.json`.

    Raises:
      UserError: the topology does not exist, libtpu is missing, the mesh does not divide the batch, or a device cannot
        hold the step; the message says what would make it fit.
    """
    config = run.config
    result = make_plan(config, vocab_size(run), topology_devices(config.plan.topology))
    rows = result.table()
    print(display.markdown(["plan", config.plan.topology or "the devices here"], rows))
    files.write_json(
        run.folder / "plan.json",
        dataclasses.asdict(result) | {"topology": config.plan.topology, "fits": result.fits, "seconds": result.seconds},
    )
    if result.fits is False:
        raise UserError(
            f"the step needs {_gib(result.memory.peak)} on a device that has {_gib(result.room)} for it; "
            f"what would help:\n  " + "\n  ".join(advice(config, result))
        )
    return dict(rows)


def make_plan(config: ConfigDict, size: int, devices: Sequence[jax.Device]) -> Plan:
    """Compiles the config's train step for `devices`, which need not exist, and a vocabulary of `size` tokens."""
    mesh = models.make_mesh(config, devices)
    model = models.abstract(config, size)
    state = states.abstract_state(config, model, mesh)
    sharding.check_rules(state.params, config.mesh.rules)
    batch = examples.abstract_batch(config, mesh)
    examples.check_chunks(config, mesh.size)
    chip = chips.of(devices[0])
    with jax.set_mesh(mesh):
        traced = states.make_step(config, model).trace(state, batch)
        useful = states.useful_flops(config, size, state, batch)
        _log.info("plan: compiling for %d devices, which takes minutes for a large model", mesh.size)
        memory = _memory(traced.lower(lowering_platforms=(_platform(devices[0]),)), state, batch, _limit(devices[0]))
    return Plan(
        devices[0].device_kind,
        chip,
        mesh.shape[sharding.DATA],
        mesh.shape[sharding.FSDP],
        sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        config.train.batch_size,
        config.train.steps,
        memory,
        work.of(traced.jaxpr),
        useful,
    )


def topology_devices(topology: str) -> Sequence[jax.Device]:
    """The devices of a TPU topology such as 'v5e:4x8', for compilation alone; of '' the devices of this machine.

    Raises:
      UserError: there is no such chip or topology, or libtpu is not installed.
    """
    if not topology:
        return jax.devices()
    name = topology.partition(":")[0]
    chip = next((chip for chip in chips.CHIPS if chip.name == name and chip.is_tpu), None)
    if chip is None:
        raise unknown_name("chip in config.plan.topology", name, [chip.name for chip in chips.CHIPS if chip.is_tpu])
    if not (importlib.util.find_spec("libtpu") or os.environ.get("TPU_LIBRARY_PATH")):
        raise UserError(
            f"config.plan.topology={topology} needs the package libtpu, which compiles for TPUs without one: "
            "pip install 'retrieval[plan]' (or pip install libtpu==0.0.52)"
        )
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # which would ask the cloud about this machine
    jax.config.update("jax_platforms", "cpu")  # no search for a TPU here
    from jax.experimental import topologies

    options = {"chip_config_name": "megacore"} if name == "v4" else {}  # both cores as one device, as a v4 runs
    try:
        return topologies.get_topology_desc(topology, "tpu", **options).devices
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"config.plan.topology={topology}: {error}; chips have to be as they are sold, such as "
            f"{name}:{'2x2x4' if name in ('v4', 'v5p') else '4x8'}"
        ) from error


def advice(config: ConfigDict, plan: Plan) -> Iterator[str]:
    """Settings that would make a step fit which does not, with what they would bring."""
    room = _ROOM * plan.room
    rest = plan.memory.peak - plan.memory.state
    sizes = [size for size in range(plan.fsdp + 1, plan.devices + 1) if plan.devices % size == 0]
    if plan.memory.state > rest and sizes:
        enough = next((s for s in sizes if plan.memory.state * plan.fsdp / s + rest <= room), sizes[-1])
        state = plan.memory.state * plan.fsdp / enough
        yield (
            f"config.mesh.fsdp={enough}: parameters and optimizer state would take about {_gib(state)} of a device in "
            f"place of {_gib(plan.memory.state)}"
        )
    if config.model.remat != "full" and not config.train.chunk_size:
        yield "config.model.remat=full: of a layer only its input would be kept, and the rest computed again"
    rows = config.train.chunk_size or config.train.batch_size
    smaller = [
        size
        for size in examples.chunk_sizes(config, plan.devices)
        if size < rows and plan.memory.state + rest * size / rows <= room
    ]
    if smaller and not models.is_mlm(config):
        share = smaller[-1] / rows
        yield (
            f"config.train.chunk_size={smaller[-1]}: what depends on the rows that are computed at a time, now at most "
            f"{_gib(rest)}, would be about {_gib(share * rest)}"
        )
    times = math.ceil(plan.memory.peak / room)
    yield (
        f"more chips: {times} times as many, each with {1 / times:.0%} of the rows (and of parameters and optimizer "
        f"state, with mesh.fsdp {times} times as large)"
    )


def _limit(device: jax.Device) -> int | None:
    """What a program may hold on a device, where that is here and says so: JAX takes a share of a GPU's memory."""
    here = device in jax.local_devices()  # one of a topology has no memory to ask about
    return (device.memory_stats() or {}).get("bytes_limit") if here else None


def _memory(lowered: Any, state: Any, batch: Any, limit: int | None) -> Memory:
    """What the compiler says, also where it says that it is too much.

    Args:
      limit: what the device itself says.
    """
    state_bytes, batch_bytes = _bytes(state), _bytes(batch)
    try:
        analysis = lowered.compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        used = re.search(r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT]) hbm", str(error))
        if not used:
            raise
        peak, limit = (int(float(used[at]) * _UNITS[used[at + 1]]) for at in (1, 3))
        return Memory(state_bytes, state_bytes + batch_bytes, None, peak, limit)
    arguments, temporaries = analysis.argument_size_in_bytes, analysis.temp_size_in_bytes
    held = arguments + analysis.output_size_in_bytes - analysis.alias_size_in_bytes + temporaries
    return Memory(state_bytes, arguments, temporaries, held, limit)


def _bytes(tree: Any) -> int:
    """Bytes of arrays on a device."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def vocab_size(run: Run) -> int:
    """The tokens of the vocabulary that the run trains with; of one that is yet to be trained, those it is to have.

    Raises:
      UserError: it cannot be read.
    """
    return len(run.load_vocabulary()) if run.vocabulary else run.holder("prepare").config.prepare.vocab_size


def _platform(device: jax.Device) -> str:
    return {"gpu": "cuda"}.get(device.platform, device.platform)


def _gib(count: float | None) -> str | None:
    return None if count is None else f"{count / 2**30:.2f} GiB"
