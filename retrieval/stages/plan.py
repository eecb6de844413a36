"""The stage `plan`: the real train step, compiled ahead of time for machines that are not there.

Nothing is allocated: parameters, optimizer state and batches are shapes. For a TPU topology the package libtpu
compiles, which needs no TPU.
"""

import dataclasses
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval import files
from retrieval.config.fields import values_of
from retrieval.errors import UserError
from retrieval.evaluation import display
from retrieval.models.transformer import remat_for
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes import examples, train_state
from retrieval.recipes.packed_rows import with_rows
from retrieval.recipes.placement import make_mesh
from retrieval.recipes.recipe import abstract_model, check_recipe, recipe_of
from retrieval.stage_outputs import Run
from retrieval.stages import (
    plan_collection,
    plan_devices,
    plan_indexes,
    plan_tuning,
    step_time,
    training_steps,
    training_time,
)
from retrieval.stages.plan_collection import gib
from retrieval.stages.plan_tuning import Outcome
from retrieval.stages.step_plan import Plan
from retrieval.training import chips, collectives, cycles, sharding, step_memory, work

_log = logging.getLogger(__name__)

_LONGEST = 20.0  # seconds of a step that is run to see how long it takes
_BATCH = 2.0  # the same of a batch that is encoded
_ROOM = 0.9  # the share of the memory that advice fills: its estimates are rough


def plan(run: Run) -> dict[str, Any]:
    """Compiles the train step for `config.plan.topology`, prints what it takes and writes `plan.json`.

    Raises:
      UserError: the topology does not exist, libtpu is missing, the mesh does not divide the batch, or a device cannot
        hold the step; the message says what would make it fit.
    """
    devices = plan_devices.of_topology(run.config.plan.topology)
    if "train" not in run.config.stages:
        _log.warning("plan: config.stages has no 'train': the run trains nothing, and this is what training would take")
    run = _packed(run, len(devices))
    config = _with_steps(run.config, lambda: examples.drawn(run, run.load_vocabulary())[1])
    if config.plan.tune:
        config = _tuned(config, run.vocab_size, devices, run.folder / plan_tuning.KEPT)
    result = make_plan(config, run.vocab_size, devices)
    if not config.plan.topology:
        result = _timed(result, config, run.vocab_size, devices)
    if config.plan.passages:
        result = dataclasses.replace(result, indexes=plan_indexes.indexes(run, _dimensions(config, run.vocab_size)))
    rows = result.table()
    print(display.markdown(["plan", config.plan.topology or "the devices here"], rows))
    files.write_json(
        run.folder / "plan.json",
        dataclasses.asdict(result) | {"topology": config.plan.topology, "fits": result.fits, "seconds": result.seconds},
    )
    if result.fits is False:
        tips = advice(
            result, config.model.remat, config.train.chunk_size, recipe_of(config).chunk_sizes(result.devices)
        )
        raise UserError(f"{_shortage(result)}; what would help:\n  " + "\n  ".join(tips))
    return dict(rows)


def _packed(run: Run, devices: int) -> Run:
    """The run with the packed rows that `data.pack.auto` chooses, where the data that says so is there."""
    if not run.config.data.pack.auto:
        return run
    try:
        return with_rows(run, run.load_vocabulary(), devices)
    except UserError as error:
        _log.warning(
            "plan: config.data.pack.auto chooses rows by data that is not there, so each text has one: %s", error
        )
        return run


def _dimensions(config: ConfigDict, size: int) -> int | None:
    """Of the embeddings of `plan.passages`; None, which is said, where the recipe has no towers."""
    recipe = recipe_of(config)
    if recipe.has_towers:
        return plan_collection.dimensions(config, size)
    _log.warning(
        "plan: %s gives no embeddings, so of config.plan.passages the indexes of words alone are planned; encoding, "
        "exact search and the index of embeddings are left out",
        recipe.label,
    )
    return None


def _timed(planned: Plan, config: ConfigDict, size: int, devices: Sequence[sharding.Device]) -> Plan:
    """The plan with what the devices here do in a second at most, and how long a step takes if that is not long."""
    rate = training_time.operations_per_second(devices)
    planned = dataclasses.replace(planned, rate=rate)
    if planned.collection:
        collection = plan_collection.timed(planned.collection, config, size, devices, _BATCH * rate)
        planned = dataclasses.replace(planned, collection=collection)
    if planned.fits is False or planned.devices * planned.work.flops > _LONGEST * rate:
        return planned
    if any(device.process_index != jax.process_index() for device in devices):  # the others wait for this stage
        _log.info("plan: a step is measured where one host has all devices; here it has not")
        return planned
    return dataclasses.replace(planned, measured=step_time.measure(config, size, devices))


def _with_steps(config: ConfigDict, epoch: Callable[[], int]) -> ConfigDict:
    """The config with the steps that `train.epochs` is; 1,000 where the data that says so is not there yet.

    Args:
      epoch: gives the examples of one.
    """
    if not config.train.epochs:
        return config
    try:
        return training_steps.with_steps(config, epoch())
    except UserError as error:
        steps = 1000
        _log.warning(
            "plan: the steps of config.train.epochs=%g are not known yet, so hours are of %d steps: %s",
            *(config.train.epochs, steps, error),
        )
    config = config.copy_and_resolve_references()
    config.train.steps = steps
    return config


def _tuned(config: ConfigDict, size: int, devices: Sequence[sharding.Device], tried_before: Path) -> ConfigDict:
    """The config with the fastest settings that fit, which are printed with what else was tried."""

    def changed(settings: plan_tuning.Settings) -> ConfigDict:
        other = config.copy_and_resolve_references()
        other.update_from_flattened_dict(settings)
        return other

    def measure(settings: plan_tuning.Settings) -> Outcome:
        try:
            # A collection is planned once, with the settings that are taken.
            planned = make_plan(changed(settings | {"plan.passages": 0}), size, devices)
        except UserError as error:
            return Outcome(False, None, None, str(error))
        return Outcome(planned.fits, planned.memory.peak, planned.cost, planned.memory.refusal, planned.cost_by)

    apart = ("plan", "loop", "stages")
    values = {name: value for name, value in config.to_dict().items() if name not in apart}
    device = devices[0]
    compiler = jax.__version__, device.client.platform_version  # of a TPU libtpu's build
    of = json.dumps(
        [
            *(values, config.plan.topology, device.device_kind, len(devices), size),
            *(compiler, step_memory.program_limit(device)),
        ],
        default=str,
    )
    pack = config.data.pack
    tried_fields = plan_tuning.choices(
        values_of(config, plan_tuning.FIELDS)
        | {"model.remat": remat_for(config.model.remat, config.model.num_layers, config.model.hidden_size)},
        recipe_of(config).chunk_sizes(len(devices)),
        config.train.batch_size,
        config.model.num_layers,
        len(devices),
        packs=bool(pack.query or pack.document),
    )
    tuning = plan_tuning.tune(measure, tried_fields, plan_tuning.batches(config.train.batch_size), tried_before, of)
    speed = f"examples per second by {tuning.first.cost_by or 'none'}, times the first that fits"
    header = ["settings", "fits", "GiB of a device", speed, ""]
    print(display.markdown(header, list(plan_tuning.rows(tuning))))
    print(f"\nthe fastest that fits: {plan_tuning.shown(tuning.best) or 'the config as it is'}\n")
    return changed(tuning.best)


def make_plan(
    config: ConfigDict,
    size: int,
    devices: Sequence[sharding.Device],
) -> Plan:
    """Compiles the config's train step for `devices`, which need not exist, and a vocabulary of `size` tokens."""
    mesh = make_mesh(config, devices)
    model = abstract_model(config, size)
    state = train_state.abstract_state(config, model, mesh)
    sharding.check_rules(state.params, config.mesh.rules)
    batch = examples.abstract_batch(config, mesh)
    recipe_of(config).check_chunks(mesh.size)
    chip = chips.of(devices[0])
    with jax.set_mesh(mesh):
        traced = train_state.make_step(config, model).trace(state, batch)
        useful = train_state.useful_flops(config, size, state, batch)
        _log.info("plan: compiling for %d devices, which takes minutes for a large model", mesh.size)
        lowered = traced.lower(lowering_platforms=(plan_devices.platform(devices[0]),))
        memory, text = step_memory.compile_step(
            lowered, step_memory.bytes_of(state), step_memory.bytes_of(batch), step_memory.program_limit(devices[0])
        )
    has_collection = config.plan.passages > 0 and recipe_of(config).has_towers
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
        collectives.received(text, _chips(mesh.devices.flat)) if text else None,
        useful,
        cycles.estimated(text) if text else {},
        cycles.kernels(text) if text else 0,
        plan_collection.parts(config, size, devices, chip) if has_collection else (),
    )


def advice(plan: Plan, remat: str, chunk_size: int, possible_chunks: Sequence[int]) -> Iterator[str]:
    """Settings that would make a step fit which does not, with what they would bring where that can be told.

    Args:
      remat: of `config.model`, as the plan has it.
      chunk_size: the same of `config.train`.
      possible_chunks: values that it may have on the plan's devices.
    """
    if remat != "full" and not chunk_size:
        yield "config.model.remat=full: of a layer only its input would be kept, and the rest computed again"
    rows = chunk_size or plan.batch_size  # that are computed at a time
    chunk_sizes = [size for size in possible_chunks if size < rows]
    peak, room = plan.memory.peak, plan.room
    if peak is None or room is None:
        yield from _general_advice(plan, chunk_sizes)
    else:
        yield from _measured_advice(plan, peak, _ROOM * room, rows, chunk_sizes)


def _measured_advice(plan: Plan, peak: int, room: float, rows: int, chunk_sizes: Sequence[int]) -> Iterator[str]:
    rest = peak - plan.memory.state
    sizes = _fsdp_sizes(plan)
    if plan.memory.state > rest and sizes:
        enough = next((s for s in sizes if plan.memory.state * plan.fsdp / s + rest <= room), sizes[-1])
        state = plan.memory.state * plan.fsdp / enough
        yield (
            f"config.mesh.fsdp={enough}: parameters and optimizer state would take about {gib(state)} of a device in "
            f"place of {gib(plan.memory.state)}"
        )
    smaller = [size for size in chunk_sizes if plan.memory.state + rest * size / rows <= room]
    if smaller:
        share = smaller[-1] / rows
        yield (
            f"config.train.chunk_size={smaller[-1]}: what depends on the rows that are computed at a time, now at most "
            f"{gib(rest)}, would be about {gib(share * rest)}"
        )
    times = math.ceil(peak / room)
    yield (
        f"more chips: {times} times as many, each with {1 / times:.0%} of the rows (and of parameters and optimizer "
        f"state, with mesh.fsdp {times} times as large); or a smaller config.train.batch_size, which trains otherwise"
    )


def _general_advice(plan: Plan, chunk_sizes: Sequence[int]) -> Iterator[str]:
    """Advice without numbers, where the compiler does not say how much the step needs."""
    if sizes := _fsdp_sizes(plan):
        yield f"config.mesh.fsdp={sizes[0]}, or more: devices would share parameters and optimizer state"
    if chunk_sizes:
        yield f"config.train.chunk_size={chunk_sizes[-1]}, or less: fewer rows would be computed at a time"
    yield "more chips; or a smaller config.train.batch_size, which trains otherwise"


def _fsdp_sizes(plan: Plan) -> list[int]:
    """Larger values of config.mesh.fsdp."""
    return [size for size in range(plan.fsdp + 1, plan.devices + 1) if plan.devices % size == 0]


def _shortage(plan: Plan) -> str:
    """What a step needs that does not fit, and what there is; in the compiler's words where it gives no numbers."""
    if plan.memory.peak is None:
        return f"the step does not fit, the compiler says: {plan.memory.refusal}"
    return f"the step needs {gib(plan.memory.peak)} on a device that has {gib(plan.room)} for it"


def _chips(devices: Iterable[sharding.Device]) -> list[int]:
    """The number of the chip of each device; the cores of a TPU's chip have the same coordinates."""
    places = [getattr(device, "coords", None) for device in devices]
    known = {place: number for number, place in enumerate(dict.fromkeys(map(str, places)))}
    return list(range(len(places))) if None in places else [known[str(place)] for place in places]


STAGES.register(
    "plan",
    Stage(
        plan,
        check_settings=(examples.check, check_recipe),
        reads="the config; lengths of the data for `data.pack.auto`, some texts for `plan.passages`",
        writes="`plan.json`; prints what a train step takes on `plan.topology`",
        uses=("seed", "recipe", "vocab", "prepare.vocab_size", "data", "model", "train"),
        leaves=("plan.json", plan_tuning.KEPT),
        always=True,
    ),
)
