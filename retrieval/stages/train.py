"""The stage `train`: shards to a checkpoint."""

import contextlib
import logging
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval.common import libraries
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts, ending, hosts
from retrieval.common.runtime.signals import PreemptedError
from retrieval.config.fields import of_fields
from retrieval.data.labelled import sources
from retrieval.data.tokenizers.prefixes import Prefixes
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import check_chunks, check_recipe, recipe_of
from retrieval.runs.fitting import examples, refresh_kind, source_batches, trackers, training_length, training_setup
from retrieval.runs.fitting.refresh_kind import FOLDER, refresh_of
from retrieval.runs.fitting.training_log import TrainingLog
from retrieval.runs.fitting.training_setup import BAD_BATCHES, Setup
from retrieval.runs.pipeline.records import is_done, read_own_record
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import SEALED, STAGES, Protected, Read, Stage
from retrieval.runs.weights import initial_parameters, train_state
from retrieval.training import loop

_log = logging.getLogger(__name__)

# The state that a run resumes from; on a store it is uploaded while training.
_FOLLOWED = ("checkpoints", FOLDER, "metrics")

_VALIDATION = ("validate_every", "validate_queries", "validate_candidates", "best")

# The stages that write labelled examples, and the field of each that names their files.
_FILES = {"pairs": "files", "spans": "questions"}


def train(run: Run) -> dict[str, Any]:
    """Trains to the last step, from the newest checkpoint where there is one."""
    setup = training_setup.prepare(run)
    with _bad_batches_stored(run):
        checkpoints = train_state.open_checkpoints(run.folder, setup.config, before=lambda: run.put("metrics"))
        newest, planned = checkpoints.latest_step(), setup.config.train.steps
        setup = setup.planned(newest)
        earlier = _earlier_lengths(setup)
        state = setup.first_state(newest)  # outside of the mesh: whole in the host's memory once, then spread
        with jax.set_mesh(setup.mesh):
            progress = loop.Progress(setup.batches)
            if newest is not None:
                state = state.restored(checkpoints, progress)
            step = train_state.make_step(setup.config, setup.model)
            log = TrainingLog(setup.config, run.folder / "metrics", newest)
            with artefacts.followed(run.remote if hosts.is_first() else None, "metrics"), ending.watch() as must_stop:
                refresh = refresh_of(setup.config)
                phase = refresh.second_phase(setup.config, log.history, checkpoints) if refresh else None
                hooks = loop.Hooks(
                    log=log,
                    validate=setup.validator(),
                    refresh=refresh.hook(setup, checkpoints, phase) if refresh else None,
                    second_phase=phase,
                    must_stop=must_stop,
                    cost=setup.cost(step),
                )
                training_length.warn(setup.config.train)
                loop.train(state, step, progress, checkpoints, setup.settings(newest), hooks)
                result = checkpoints.best_step()
                _warn_of_result(setup, result, phase)
                checkpoints.close()  # here alone: after an error a barrier would wait for hosts that are gone
                log.close()
                _heed(must_stop)
                if run.remote:
                    run.remote.get(["checkpoints"])
    _log.info("train: step %d of %d is the result", result, setup.config.train.steps)
    return _details(setup, result, earlier, phase) | training_length.cut_short(setup.config.train, planned)


def _bad_batches_stored(run: Run) -> contextlib.AbstractContextManager[Any]:
    """In the end each host puts its bad batches on the store, if the run is on one."""
    stack = contextlib.ExitStack()
    if run.remote:
        stack.callback(lambda copy: copy.give(copy.looks([BAD_BATCHES])), run.remote)
    return stack


def _heed(must_stop: ending.Preemption) -> None:
    """Stops all hosts after a signal that came to one too late for the loop."""
    if hosts.is_anywhere(must_stop.received.is_set()):
        raise PreemptedError("interrupted after the last step, which is saved: the same command goes on from there")


def _earlier_lengths(setup: Setup) -> list[int]:
    """The numbers of steps with which the run was finished before it got more of them, by the stage's record."""
    before, steps = (read_own_record(setup.run, "train") or {}).get("before"), setup.config.train.steps
    if not before:
        return []
    what = f"with the learning rates of {steps}: that is not what as many steps in one go give"
    _log.warning("train: finished with %d steps, and goes on to %d %s", before["steps"], steps, what)
    return [*before.get("went on from", []), before["steps"]]


def _warn_of_result(setup: Setup, result: int | None, phase: Any) -> None:
    """Warns of a training that changed nothing, or came to no second phase."""
    steps, metric = setup.config.train.steps, setup.config.loop.best
    if phase and phase.step in (None, steps):
        way = "no second phase, and no hard negatives; raise config.train.steps, or lower config.mine.patience"
        _log.warning("train: %s rose until the end, so there was %s", metric, way)
    if result == 0:
        way = "try another config.train.learning_rate, other examples or more steps"
        _log.warning("train: no step has a higher %s than config.train.init_from, the result; %s", metric, way)


def _details(setup: Setup, result: int | None, earlier: list[int], phase: Any) -> dict[str, Any]:
    """What the record of the stage keeps."""
    config = setup.config
    details = {
        "parameters": setup.parameters,
        "devices": setup.mesh.size,
        "platform": jax.default_backend(),
        "step": result,
        SEALED: [f"checkpoints/{result}"],
        "vocabulary": setup.vocabulary.fingerprint,
        "steps": config.train.steps,
        "went on from": earlier,
    }
    details |= {"epochs": config.train.epochs} if config.train.epochs else {}
    details |= {"packed": config.data.pack.to_dict()} if setup.recipe.packing() and config.data.pack.auto else {}
    return details | ({"second phase after": phase.step} if phase else {})


def check_data(run: Run) -> None:
    """Checks that the training data, and what a refresh of hard negatives reads, will exist and be compatible."""
    if is_done(run, "train"):
        return
    config, stage = run.config, recipe_of(run.config).examples_of
    if labelled := examples.labelled(config):
        writer, rate = run.owner(stage), f"config.data.rates.{labelled[0]}=0"
        if stage not in writer.config.stages:
            way = f"set config.{stage}.{_FILES[stage]} or config.split.set, or set {rate}"
            raise UserError(f"task '{labelled[0]}' has no example: add '{stage}' to config.stages and {way}")
        STAGES[stage].check_reader(writer, run)
    if others := examples.unlabelled(config):
        if not (run.prepares or run.corpus.exists()):
            way = f"set config.base to a run that has it, or config.data.rates.{others[0]}=0"
            raise UserError(f"task '{others[0]}' needs a prepared corpus: add 'prepare' to config.stages, {way}")
        STAGES["prepare"].check_reader(run.owner("prepare"), run)
    if refresh := refresh_of(config):
        refresh.check_run(run)


def check_model(run: Run) -> None:
    """Checks that devices, batches and parameters fit each other, and what the parameters start from."""
    if is_done(run, "train"):
        return
    config, mesh = run.config, make_mesh(run.config)
    examples.abstract_batch(config, mesh)
    check_chunks(recipe_of(config), mesh.size)
    recipe_of(config).check_run(run)
    if run.vocabulary and (config.data.query_prefix or config.data.document_prefix):
        Prefixes.of(config.data, run.load_vocabulary())  # which refuses one that leaves no room
    start = initial_parameters.start_of(config)
    start.check(run)
    start.check_tensors(config)


def check_validation(config: ConfigDict) -> None:
    """Checks that there is something to validate checkpoints on, where that is asked for."""
    if config.loop.validate_every:
        recipe_of(config).check_validation()


def read(config: ConfigDict) -> list[str | Read]:
    """What the stage reads: the corpus, labelled examples, and what a refresh needs."""
    needs = refresh.needs if (refresh := refresh_of(config)) else ()
    return ["prepare", recipe_of(config).examples_of, *needs, Read("sets", any_version=True)]


STAGES.register(
    "train",
    Stage(
        train,
        check_config=(
            source_batches.check,
            examples.check,
            check_recipe,
            of_fields(training_length.check, "train", "loop.keep_steps", "profile.steps", "mine.refresh_every"),
            initial_parameters.check_step,
            refresh_kind.check,
            check_validation,
            of_fields(trackers.check, "loop.report_to"),
        ),
        check=(libraries.check_training, Run.check_vocabulary, check_data, check_model),
        fields=(
            *("seed", "recipe", "data", "model", "train", "encode.windows", "spans.early", sources.FIELD),
            *refresh_kind.settings(),
            *(f"loop.{name}" for name in _VALIDATION),
        ),
        also_reads=("encode.batch_tokens", "encode.shard_size"),
        reads=read,
        files=lambda run: [*initial_parameters.start_of(run.config).inputs(run), *run.vocabulary_inputs()],
        fetch=lambda run: initial_parameters.start_of(run.config).fetch(run),
        side_outputs=(*_FOLLOWED, BAD_BATCHES, "profile"),
        shared_between_hosts=(FOLDER,),
        protected=Protected(("train.steps", "train.epochs", "train.minutes"), initial_parameters.decided),
        on_every_host=True,
    ),
)
