"""The stage `adopt`: a model as it is, published or of another run, to a checkpoint that all other stages read.

It stands in config.stages in place of `train`. Nothing is trained, so there are no examples, and no optimizer.
"""

import functools
import logging
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import abstract_model, check_recipe, recipe_of
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import ADOPT, SEALED, STAGES, TRAIN, Protected, Stage
from retrieval.runs.weights import initial_parameters, train_state
from retrieval.runs.weights.initial_parameters import FIELD, TEXT_FIELDS
from retrieval.training import checkpoint

_log = logging.getLogger(__name__)


class _NoData:
    """The position in data that there is none of."""

    def save(self, folder: Path) -> None:
        """Writes nothing."""

    def restore(self, folder: Path) -> None:
        """Reads nothing."""


def adopt(run: Run) -> dict[str, Any]:
    """Writes the parameters that `train.init_from` names as step 0."""
    config, vocabulary = run.config, run.load_vocabulary()
    start, mesh = initial_parameters.start_of(config), make_mesh(config)
    start.check(run)
    abstract = train_state.abstract_state(config, abstract_model(config, len(vocabulary)), mesh)
    begin = functools.partial(recipe_of(config).begin, run)
    checkpoint.drop_damaged(artefacts.checkpoints(run.folder))
    checkpoints = checkpoint.Checkpointer(artefacts.checkpoints(run.folder))
    state = initial_parameters.initial_state(config, len(vocabulary), abstract, begin)
    checkpoints.save(0, state.saved(), _NoData())
    checkpoints.close()
    if run.remote:
        run.remote.get(["checkpoints"])
    size = sum(leaf.size for leaf in jax.tree.leaves(abstract.params))
    _log.info("adopt: %s, %.1f million parameters", config.train.init_from, size / 1e6)
    details = {"parameters": size, "devices": mesh.size, "platform": jax.default_backend()}
    return details | {"step": 0, "steps": 0, SEALED: ["checkpoints/0"], "vocabulary": vocabulary.fingerprint}


def check_config(config: ConfigDict) -> None:
    """Checks that there is a model to take, and that none is trained beside it."""
    if TRAIN in config.stages:
        raise UserError(f"config.stages has '{ADOPT}' and '{TRAIN}', and a run has one model: leave one of them out")
    if not config.train.init_from:
        raise UserError(f"the stage '{ADOPT}' takes the model that {FIELD} names, and that is empty: set it")


def check(run: Run) -> None:
    """Checks that the model fits the config and the vocabulary."""
    start = initial_parameters.start_of(run.config)
    recipe_of(run.config).check_run(run)
    start.check(run)
    start.check_tensors(run.config)


STAGES.register(
    ADOPT,
    Stage(
        adopt,
        check_config=(check_config, check_recipe, initial_parameters.check_step),
        check=(Run.check_vocabulary, check),
        fields=(
            *("seed", "recipe", "model", "train.init_from", "train.init_step"),
            *(f"data.{name}" for name in TEXT_FIELDS),
        ),
        also_reads=("train", "data"),
        files=lambda run: [*initial_parameters.start_of(run.config).inputs(run), *run.vocabulary_inputs()],
        fetch=lambda run: initial_parameters.start_of(run.config).fetch(run),
        side_outputs=("checkpoints",),
        protected=Protected(decides=initial_parameters.decided),
        on_every_host=True,
    ),
)
