"""The stage `train`: shards to a checkpoint."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval.data.examples.batches import Batches
from retrieval.evaluation.training_metrics import read_training
from retrieval.pipeline.records import read_own_record
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import SEALED
from retrieval.recipes import adapters, initial_parameters, train_state
from retrieval.recipes.examples import NoBatches, abstract_batch, abstract_batches, draws, unlabelled
from retrieval.recipes.packed_rows import with_rows
from retrieval.recipes.placement import make_mesh
from retrieval.recipes.recipe import abstract_model, recipe_of
from retrieval.recipes.source_batches import make_batches
from retrieval.recipes.source_objective import BySource
from retrieval.runtime import artefacts, devices, ending, following, hosts
from retrieval.runtime.signals import PreemptedError
from retrieval.stages import (
    data_warnings,
    metric_writers,
    refresh,
    training_steps,
    training_time,
)
from retrieval.stages.turn import Turn
from retrieval.stages.versions import Versions
from retrieval.training import chips, frozen, loop, sharding
from retrieval.training.checkpoint import drop_damaged
from retrieval.training.collapse import Collapse

_log = logging.getLogger(__name__)

# What a run goes on from.
FOLLOWED = ("checkpoints", "refreshed", "metrics")

# Where a batch is kept whose updates were not finite.
BAD_BATCHES = "bad_batches"


def train(run: Run) -> dict[str, Any]:
    """Trains to the last step, from the newest checkpoint where there is one."""
    vocabulary = run.load_vocabulary()
    initial_parameters.check_start(run)
    mesh = make_mesh(run.config)
    run = with_rows(run, vocabulary, mesh.size)
    config = run.config
    refreshes = config.mine.refresh_every > 0
    # Before the model, for what may be wrong with the data.
    remade = Versions(run, vocabulary, mesh) if refreshes else None
    batches = remade or (make_batches(run, vocabulary, mesh) if draws(run) else NoBatches())
    if isinstance(batches, Batches) and config.train.epochs:
        config = training_steps.with_steps(config, batches.epoch)
        training_time.warn_of_days(config, lambda: len(vocabulary), mesh)
    model = abstract_model(config, len(vocabulary))
    like = train_state.abstract_state(config, model, mesh)
    sharding.check_rules(like.params, config.mesh.rules)
    size, fixed = (sum(leaf.size for leaf in jax.tree.leaves(p)) for p in (like.params, frozen.split(like.params)[1]))
    trained = f", {(size - fixed) / 1e6:.2f} million of them trained" if fixed else ""
    _log.info("model: %.1f million parameters%s on %d devices", size / 1e6, trained, mesh.size)
    devices.tell_of_bits(jax.default_backend())
    if run.copy:
        devices.keep_programs_at(f"{run.copy.url}/cache/xla")
    drop_damaged(artefacts.checkpoints(run.folder))
    with _bad_batches_put(run):
        checkpointer = train_state.open_checkpoints(run.folder, config, before=lambda: run.put("metrics"))
        resumed = checkpointer.latest_step() is not None
        measure = functools.partial(
            training_time.measure_step, config, len(vocabulary), mesh.devices.flatten().tolist()
        )
        config = training_steps.planned(run, config, checkpointer.latest_step(), measure)
        if (tasks := unlabelled(config)) and not resumed:
            hosts.on_first(lambda: data_warnings.warn_of_corpus(run, vocabulary, tasks))
        went_on = _went_on(read_own_record(run, "train"), config.train.steps)
        begin = functools.partial(recipe_of(config).begin, run)
        is_whole = resumed and not config.train.lora.rank  # else checkpoints have no base of adapters
        if resumed and not is_whole:
            adapters.check_base(read_own_record(run, "train") or {}, initial_parameters.train_inputs(run), run.folder)
        state = like if is_whole else initial_parameters.initial_state(config, len(vocabulary), like, begin)
        with jax.set_mesh(mesh):
            validate = recipe_of(config).validation(run, vocabulary, mesh) if config.loop.validate_every else None
            progress = loop.Progress(batches)
            if resumed:
                state = state.restored(checkpointer, progress)
            step_fn = train_state.make_step(config, model)
            begins = int(state.step) if resumed else -1  # the line of step 0 is written again
            writer = metric_writers.Writer(run.folder / "metrics", begins)
            sign, score = recipe_of(config).collapse, f"validation/{config.loop.best}"
            before = _logged(run.folder / "metrics" / "train.jsonl", [score, *(sign.metrics if sign else ())])
            metrics = following.followed(run.copy if run.copy and run.copy.writes else None, "metrics")
            with metrics, ending.watch() as stops_at:
                count = functools.partial(train_state.useful_flops, config, len(vocabulary), like, step=step_fn)
                if isinstance(batches, Batches) and batches.sources:
                    flops = mean_flops(count, abstract_batches(config, mesh), batches.sources.share_S.tolist())
                else:
                    flops = count(abstract_batch(config, mesh))
                cost = _cost(flops, mesh)
                turn = None
                if config.mine.patience:
                    afresh = functools.partial(train_state.afresh, config)
                    rule = config.mine.patience, config.loop.best
                    turn = Turn(before, *rule, checkpointer, afresh)
                watched, warmup = BySource(writer, config), int(config.train.warmup_ratio * config.train.steps)
                if sign:
                    watched = Collapse(watched, sign, config.train.steps, warmup, before)
                training_steps.warn(config.train)
                trace_steps = training_steps.traced(config.profile.steps, config.train.steps)
                anew = refresh.Refresh(run, vocabulary, mesh, remade, checkpointer, turn) if remade else None
                loop.train(
                    state,
                    step_fn,
                    progress,
                    checkpointer,
                    watched,
                    _settings(config.train.steps, config.loop, config.mine.refresh_every, trace_steps, run.folder),
                    validate=validate,
                    from_model=bool(config.train.init_from) and not resumed,
                    stops_at=stops_at,
                    cost=cost,
                    refresh=anew,
                    turn=turn,
                )
                if turn and turn.step in (None, config.train.steps):
                    _log.warning(
                        "train: %s rose until the end, so there was no second phase, and no hard negatives; raise "
                        "config.train.steps, or lower config.mine.patience",
                        config.loop.best,
                    )
                step = checkpointer.best_step()
                if step == 0 and config.train.steps:
                    _log.warning(
                        "train: no step has a higher %s than config.train.init_from, so that is the result; try "
                        "another config.train.learning_rate, other examples or more steps",
                        config.loop.best,
                    )
                checkpointer.close()
                writer.close()
                if hosts.is_anywhere(stops_at.received.is_set()):
                    raise PreemptedError(
                        "interrupted after the last step, which is saved: the same command goes on from there"
                    )
                if run.copy:
                    run.copy.get(["checkpoints"])
    if config.train.steps:
        _log.info("train: step %d of %d is the result", step, config.train.steps)
    summary = {"parameters": size, "devices": mesh.size, "platform": jax.default_backend(), "step": step}
    sealed = {SEALED: [f"checkpoints/{step}"]}
    epochs = {"epochs": config.train.epochs} if config.train.epochs else {}
    packed = {"packed": config.data.pack.to_dict()} if recipe_of(config).packing() and config.data.pack.auto else {}
    origin = {"vocabulary": vocabulary.fingerprint, "steps": config.train.steps, "went on from": went_on}
    turned = {"second phase after": turn.step} if turn else {}
    return summary | sealed | origin | epochs | packed | turned


def _logged(path: Path, names: Sequence[str]) -> list[tuple[int, dict[str, float]]]:
    """Step and metrics of the lines that the run has logged, as far as they have these metrics, on all hosts."""

    def of(line: Mapping[str, Any]) -> dict[str, float]:
        return {name: line[name] for name in names if line.get(name) is not None}

    return hosts.on_first(lambda: [(step, found) for step, line in read_training(path) if (found := of(line))])


def _went_on(record: dict[str, Any] | None, steps_now: int) -> list[int]:
    """The numbers of steps with which the run was finished before it got more of them, by the stage's record."""
    before = (record or {}).get("before")
    if not before:
        return []
    steps = before["steps"]
    _log.warning(
        "train: finished with %d steps, and goes on to %d with the learning rates of %d: that is not what as many "
        "steps in one go give",
        steps,
        steps_now,
        steps_now,
    )
    return [*before.get("went on from", []), steps]


@contextlib.contextmanager
def _bad_batches_put(run: Run) -> Iterator[None]:
    """Where the work directory is on a store, puts bad batches there in the end, of every host."""
    try:
        yield
    finally:
        if run.copy:
            run.copy.give(run.copy.looks([BAD_BATCHES]))


def _settings(
    steps: int, fields: ConfigDict, refresh_every: int, trace_steps: tuple[int, int], folder: Path
) -> loop.Settings:
    """How the loop trains; `fields` are those of `config.loop`."""
    return loop.Settings(
        steps=steps,
        log_every=fields.log_every,
        checkpoint_every=fields.checkpoint_every,
        validate_every=fields.validate_every,
        refresh_every=refresh_every,
        keep_steps=tuple(fields.keep_steps),
        bad_batches=folder / BAD_BATCHES,
        trace_steps=trace_steps,
        trace=folder / "profile",
    )


def mean_flops(
    count: Callable[[Mapping[str, Any]], float], batches: Sequence[Mapping[str, Any]], shares: Sequence[float]
) -> float:
    """Operations of a step on average, over batches that are drawn so often; those of one shape are counted once."""
    of_shape: dict[Any, tuple[Mapping[str, Any], float]] = {}
    for batch, share in zip(batches, shares, strict=True):
        shape = jax.tree.structure(batch), tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        of_shape[shape] = batch, of_shape.get(shape, (batch, 0.0))[1] + share
    return sum(share * count(batch) for batch, share in of_shape.values())


def _cost(flops: float, mesh: jax.sharding.Mesh) -> loop.Cost:
    """What a step costs all devices, of which each computes `flops` operations."""
    chip = chips.of(mesh.devices.flat[0])
    return loop.Cost(mesh.size * flops, chip and mesh.size * chip.peak_flops / chip.cores)
