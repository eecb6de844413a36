"""The stage `plan`: what a train step takes on devices that need not be here.

The real step is compiled ahead of time, with shapes in place of parameters and batches, so nothing is allocated. For a
TPU topology the package libtpu compiles, which needs no TPU. The plan has the memory of a device, operations, the
compiler's estimate by kind of operation, and hours.
"""

import dataclasses
import importlib.util
import logging
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval.common import files, libraries
from retrieval.common.errors import UserError, unknown_name
from retrieval.evaluation import display
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import abstract_model, check_chunks, check_recipe, recipe_of
from retrieval.runs.fitting import examples, source_batches, training_length
from retrieval.runs.fitting.packed_rows import with_rows
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.weights import train_state
from retrieval.training import chips, sharding, step_plan, work
from retrieval.training.chips import Chip
from retrieval.training.step_plan import CompiledStep

_log = logging.getLogger(__name__)

_STEPS = 1000  # where train.epochs counts examples that are not there yet
_ROOM = 0.9  # the share of the memory that advice fills: its estimates are rough
# libtpu would ask the cloud about this machine, print errors where nobody answers, and let one process in at a time.
_NO_TPU_HERE = {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v3-8", "TPU_WORKER_HOSTNAMES": "localhost"}
_NO_TPU_HERE |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


@dataclasses.dataclass(frozen=True)
class Plan:
    """A train step on some devices.

    Attributes:
      kind: of the devices, as JAX names it.
      chip: None where it is not in the table of chips, such as a CPU.
      data, fsdp: sizes of the mesh.
      steps: of the run.
      step: what the compiler says, of a device.
      flops: operations of a device in a step.
      useful_flops: the same, if nothing were computed twice, and no score of a token that is not seen.
      rate: operations per second of all devices together, at most.
    """

    kind: str
    chip: Chip | None
    data: int
    fsdp: int
    parameters: int
    steps: int
    step: CompiledStep
    flops: float
    useful_flops: float
    rate: float

    @property
    def devices(self) -> int:
        """Devices as JAX counts them: of some chips each core is one."""
        return self.data * self.fsdp

    @property
    def memory(self) -> int | None:
        """Bytes that a device has, by its maker."""
        return self.chip and self.chip.memory // self.chip.cores

    @property
    def room(self) -> int | None:
        """Bytes of it that the step may take; what is set aside is known where a compiler or a device says so."""
        return self.step.limit or self.memory

    @property
    def fits(self) -> bool | None:
        """Whether a device can hold the step; None where its memory is not known."""
        if self.step.refusal:
            return False
        return None if self.room is None or self.step.peak is None else self.step.peak <= self.room

    @property
    def least(self) -> float:
        """Seconds of a step, at least: those of its matrix products at the devices' peak."""
        return self.devices * self.flops / self.rate

    @property
    def estimate(self) -> float | None:
        """Seconds of a step by the compiler's estimate, without its kernels; None without an estimate or a clock."""
        clock = self.chip and self.chip.clock
        return sum(self.step.cycles.values()) / clock if clock and self.step.cycles else None


def plan(run: Run) -> dict[str, Any]:
    """Compiles the train step for `config.plan.topology`, prints what it takes and writes `plan.json`.

    Raises:
      UserError: the topology does not exist, libtpu is missing, the mesh does not divide the batch, or a device cannot
        hold the step; the message says what would make it fit.
    """
    devices = devices_of(topology := run.config.plan.topology)
    if "train" not in run.config.stages:
        _log.warning("plan: config.stages has no 'train': the run trains nothing, and this is what training would take")
    config = _with_data(run, len(devices))
    planned = make_plan(config, run.vocab_size, devices)
    rows, step = table(planned), planned.step
    print(display.markdown(["plan", topology or "the devices here"], rows))
    more = {"topology": topology, "fits": planned.fits, "least": planned.least, "estimate": planned.estimate}
    files.write_json(run.folder / "plan.json", dataclasses.asdict(planned) | more)
    if planned.fits is False:
        what = f"the step needs {_gib(step.peak)} on a device that has {_gib(planned.room)} for it"
        what = f"the step does not fit, the compiler says: {step.refusal}" if step.peak is None else what
        raise UserError("\n  ".join([f"{what}; what would help:", *advice(planned, config)]))
    return dict(rows)


def devices_of(topology: str) -> Sequence[sharding.Device]:
    """The devices of a TPU topology such as 'v5e:4x8', for compilation alone; of '' the devices of this machine.

    Raises:
      UserError: there is no such chip or topology, or libtpu is not installed.
    """
    if not topology:
        return jax.devices()
    name, tpus = topology.partition(":")[0], [chip.name for chip in chips.CHIPS if chip.is_tpu]
    if name not in tpus:
        raise unknown_name("chip in config.plan.topology", name, tpus)
    if not (importlib.util.find_spec("libtpu") or os.environ.get("TPU_LIBRARY_PATH")):
        raise UserError(f"config.plan.topology={topology} needs the package libtpu: {libraries.install('plan')}")
    for variable, value in _NO_TPU_HERE.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")  # no search for a TPU here
    from jax.experimental import topologies

    options = {"chip_config_name": "megacore"} if name == "v4" else {}  # both cores as one device, as a v4 runs
    try:
        return topologies.get_topology_desc(topology, "tpu", **options).devices
    except jax.errors.JaxRuntimeError as error:
        sold = f"{name}:{'2x2x4' if name in ('v4', 'v5p') else '4x8'}"
        raise UserError(f"config.plan.topology={topology}: {error}; take chips as sold, such as {sold}") from error


def _with_data(run: Run, devices: int) -> ConfigDict:
    """The config with the packed rows and the steps that follow from the data, as far as that is there."""
    if run.config.data.pack.auto:
        try:
            run = with_rows(run, run.load_vocabulary(), devices)
        except UserError as error:
            _log.warning("plan: config.data.pack.auto needs data that is not there; each text has a row: %s", error)
    if not run.config.train.epochs:
        return run.config
    try:
        return training_length.with_steps(run.config, source_batches.epoch_of(run, run.load_vocabulary()))
    except UserError as error:
        _log.warning("plan: the steps of config.train.epochs are not known yet, so hours are of %d: %s", _STEPS, error)
    config = run.config.copy_and_resolve_references()
    config.train.steps = _STEPS
    return config


def make_plan(config: ConfigDict, vocab_size: int, devices: Sequence[sharding.Device]) -> Plan:
    """Compiles the config's train step for `devices`, which need not exist."""
    mesh = make_mesh(config, devices)
    model = abstract_model(config, vocab_size)
    state = train_state.abstract_state(config, model, mesh)
    batch = examples.abstract_batch(config, mesh)
    check_chunks(recipe_of(config), mesh.size)
    platform = "cuda" if devices[0].platform == "gpu" else devices[0].platform
    with jax.set_mesh(mesh):
        traced = train_state.make_step(config, model).trace(state, batch)
        useful_flops = train_state.useful_flops(config, vocab_size, state, batch)
        _log.info("plan: compiling for %d devices, which takes minutes for a large model", mesh.size)
        step = step_plan.compile_step(
            traced.lower(lowering_platforms=(platform,)),
            step_plan.bytes_of(state),
            step_plan.bytes_of(batch),
            step_plan.program_limit(devices[0]),
        )
    return Plan(
        kind=devices[0].device_kind,
        chip=chips.of(devices[0]),
        data=mesh.shape[sharding.DATA],
        fsdp=mesh.shape[sharding.FSDP],
        parameters=sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        steps=config.train.steps,
        step=step,
        flops=work.flops(traced.jaxpr),
        useful_flops=useful_flops,
        rate=training_length.operations_per_second(devices),
    )


def table(planned: Plan) -> list[tuple[str, Any]]:
    """Name and value, for people, of what is known."""
    chip, step, steps = planned.chip, planned.step, f"{planned.steps:,}"
    cores = f", {chip.cores} per chip" if chip and chip.cores > 1 else ""
    rows = {
        "devices": f"{planned.devices} x {planned.kind}{cores}",
        "mesh": f"data {planned.data} x fsdp {planned.fsdp}",
        "parameters": planned.parameters,
        "a device: parameters and optimizer state": _gib(step.state),
        "a device: arguments of the step": _gib(step.arguments),
        "a device: temporaries": _gib(step.temporaries),
        "a device: peak": _gib(step.peak),
        "a device: memory": _gib(planned.memory),
        "a device: memory that a program may use": _gib(step.limit),
        "fits": {True: "yes", False: "no", None: None}[planned.fits],
        "operations of a step": f"{planned.devices * planned.flops:.4g}",
        "of these computed a second time, or for nothing": f"{1 - planned.useful_flops / planned.flops:.1%}",
        "a step at the peak of matrix products": f"{planned.least:.3f} s",
        f"hours to step {steps}, at least": f"{planned.steps * planned.least / 3600:.1f}",
    }
    if planned.estimate is not None:
        total = sum(step.cycles.values())
        rows["a step by the compiler's estimate"] = f"{planned.estimate:.3f} s"
        rows |= {f"of it {kind}": f"{cycles / total:.1%}" for kind, cycles in step.cycles.items()}
        if step.kernels:
            rows["calls of kernels (fused attention) that it leaves out"] = f"{step.kernels}: a step takes longer"
        else:
            rows[f"hours to step {steps} by the estimate"] = f"{planned.steps * planned.estimate / 3600:.1f}"
    return [(name, value) for name, value in rows.items() if value is not None]


def advice(planned: Plan, config: ConfigDict) -> Iterator[str]:
    """Settings that would make a step fit which does not: those that are enough, where the compiler gives numbers."""
    step, rows = planned.step, config.train.chunk_size or config.train.batch_size  # that are computed at a time
    shards, times = [n for n in range(planned.fsdp + 1, planned.devices + 1) if planned.devices % n == 0], "more"
    chunks = [size for size in reversed(recipe_of(config).chunk_sizes(planned.devices)) if size < rows]
    if step.peak is not None and planned.room is not None:
        room, rest = _ROOM * planned.room, step.peak - step.state
        shards = [n for n in shards if step.state * planned.fsdp / n + rest <= room]
        chunks = [size for size in chunks if step.state + rest * size / rows <= room]
        times = f"{math.ceil(step.peak / room)} times as many"
    if config.model.remat != "full" and not config.train.chunk_size:
        yield "config.model.remat=full: of a layer only its input is kept, and the rest computed again"
    if shards:
        yield f"config.mesh.fsdp={shards[0]}: devices share parameters and optimizer state, {_gib(step.state)} of each"
    if chunks:
        yield f"config.train.chunk_size={chunks[0]}: fewer rows are computed at a time"
    yield f"{times} chips; or a smaller config.train.batch_size, which trains otherwise"


def _gib(count: float | None) -> str | None:
    return None if count is None else f"{count / 2**30:.2f} GiB"


STAGES.register(
    "plan",
    Stage(
        plan,
        check_config=(examples.check, check_recipe),
        also_reads=("seed", "recipe", "vocab", "prepare.vocab_size", "data", "model", "train"),
        side_outputs=("plan.json",),
    ),
)
