"""What a training is made of: data, mesh, shapes, and the config with its length in steps."""

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval.common.runtime import artefacts, devices
from retrieval.data.examples.batches import Batches
from retrieval.data.labelled import sources
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import Recipe, abstract_model, recipe_of
from retrieval.runs.fitting import examples, training_length
from retrieval.runs.fitting.packed_rows import with_rows
from retrieval.runs.fitting.refresh_kind import refresh_of
from retrieval.runs.fitting.source_batches import make_batches
from retrieval.runs.pipeline.records import read_own_record
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import initial_parameters, train_state
from retrieval.training import chips, frozen, loop
from retrieval.training.checkpoint import drop_damaged
from retrieval.training.loop import TrainState

_log = logging.getLogger(__name__)

# Where a batch is kept whose updates were not finite.
BAD_BATCHES = "bad_batches"


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything that training needs before it looks at a checkpoint.

    Attributes:
      run: as it was asked for, with rows packed as its data needs.
      config: that of the run, with `train.steps` in place of epochs and minutes; they differ in nothing else.
      batches: endless and resumable.
      model, abstract: the model, and the train state without values: shapes, types, shardings.
    """

    run: Run
    config: ConfigDict
    vocabulary: Vocabulary
    mesh: jax.sharding.Mesh
    batches: loop.Batches
    model: Any
    abstract: TrainState

    @property
    def recipe(self) -> Recipe:
        """That of the config."""
        return recipe_of(self.config)

    @property
    def parameters(self) -> int:
        """How many the model has, trained and frozen."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract.params))

    def planned(self, newest: int | None) -> "Setup":
        """This setup with the number of training steps fixed: epochs and minutes are converted to steps."""
        places = self.mesh.devices.flatten().tolist()
        measure = functools.partial(training_length.measure_step, self.config, len(self.vocabulary), places)
        config = training_length.planned(self.run, self.config, newest, measure)
        return dataclasses.replace(self, config=config)

    def first_state(self, newest: int | None) -> TrainState:
        """The state before the first step; of a run that goes on, the shapes that `TrainState.restored` fills."""
        if newest is not None:
            if not (adapters := train_state.adapters_of(self.config)):
                return self.abstract
            inputs = initial_parameters.start_of(self.config).inputs(self.run)  # which checkpoints of adapters lack
            adapters.check_base(read_own_record(self.run, "train") or {}, inputs, self.run.folder)
        begin = functools.partial(self.recipe.begin, self.run)
        return initial_parameters.initial_state(self.config, len(self.vocabulary), self.abstract, begin)

    def validator(self) -> Callable[[Any], dict[str, float]] | None:
        """A function from parameters to metrics; None where the config asks for no validation."""
        places = self.run, self.vocabulary, self.mesh
        return self.recipe.validation(*places) if self.config.loop.validate_every else None

    def cost(self, step: Callable) -> loop.Cost:
        """What a step costs, of several sources on average."""
        count = functools.partial(train_state.useful_flops, self.config, len(self.vocabulary), self.abstract, step=step)
        drawn = self.batches.sources if isinstance(self.batches, Batches) else None
        owns = list(sources.each(self.config).values()) if drawn else [None]
        shapes = [examples.abstract_batch(self.config, self.mesh, own) for own in owns]
        flops = training_length.mean_flops(count, shapes, drawn.share_S.tolist() if drawn else [1.0])
        chip = chips.of(self.mesh.devices.flat[0])
        return loop.Cost(self.mesh.size * flops, chip and self.mesh.size * chip.peak_flops / chip.cores)

    def settings(self, newest: int | None) -> loop.Settings:
        """How the loop trains."""
        config, fields, folder = self.config, self.config.loop, self.run.folder
        return loop.Settings(
            **{name: fields[name] for name in ("log_every", "checkpoint_every", "validate_every")},
            steps=config.train.steps,
            refresh_every=config.mine.refresh_every,
            keep_steps=tuple(fields.keep_steps),
            from_model=bool(config.train.init_from) and newest is None,
            bad_batches=folder / BAD_BATCHES,
            trace_steps=training_length.traced(config.profile.steps, config.train.steps),
            trace=folder / "profile",
        )


def prepare(run: Run) -> Setup:
    """Opens the data, then shapes the model: what is wrong with the data is said first."""
    vocabulary = run.load_vocabulary()
    initial_parameters.start_of(run.config).check(run)
    mesh = make_mesh(run.config)
    run = with_rows(examples.with_batch(run, vocabulary, mesh.size), vocabulary, mesh.size)
    config, batches = run.config, _batches(run, vocabulary, mesh)
    if isinstance(batches, Batches) and config.train.epochs:
        config = training_length.with_steps(config, batches.epoch)

    model = abstract_model(config, len(vocabulary))
    abstract = train_state.abstract_state(config, model, mesh)
    setup = Setup(run, config, vocabulary, mesh, batches, model, abstract)
    fixed = sum(leaf.size for leaf in jax.tree.leaves(frozen.split(abstract.params)[1]))
    trained = f", {(setup.parameters - fixed) / 1e6:.2f} million of them trained" if fixed else ""
    _log.info("model: %.1f million parameters%s on %d devices", setup.parameters / 1e6, trained, mesh.size)
    devices.tell_of_bits(jax.default_backend())
    if run.remote:
        devices.keep_programs_at(f"{run.remote.url}/cache/xla")
    drop_damaged(artefacts.checkpoints(run.folder))
    return setup


def _batches(run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh) -> loop.Batches:
    """Batches of one source or several, perhaps refreshed while a model trains."""
    if refresh := refresh_of(run.config):
        return refresh.batches(run, vocabulary, mesh)
    return make_batches(run, vocabulary, mesh)
