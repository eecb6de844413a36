"""Trained models, opened for a stage that works with them: a run's own or its base's, or another work directory's."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.pipeline import records
from retrieval.recipes.initial_parameters import check_vocabulary, fetch_model, load_parameters
from retrieval.recipes.recipe import Recipe, recipe_of
from retrieval.runtime.store import is_url
from retrieval.stage_outputs import Run


class Trained(NamedTuple):
    """A trained model.

    Attributes:
      config: that it was trained with, and the mesh of this run.
      model: its best validated step, or its last one.
    """

    config: ConfigDict
    vocabulary: Vocabulary
    model: Any


class TrainedKind(NamedTuple):
    """A kind of model that a field names: by a work directory, or by '' as that of the run or its base.

    Attributes:
      name: of the model, and of its recipe.
      is_of: whether a recipe trains it.
      otherwise: what else the field may name, for errors.
    """

    name: str
    is_of: Callable[[Recipe], bool]
    otherwise: str = ""

    def is_there(self, run: Run, value: str) -> bool:
        """Whether the field names one, or the run or its base trains one."""
        trainer = run.holder("train").config
        return bool(value) or ("train" in trainer.stages and self.is_of(recipe_of(trainer)))

    def trainer(self, run: Run, value: str, field: str) -> Run:
        """The run whose folder has the checkpoint.

        Raises:
          UserError: there is none.
        """
        trainer = Run.opened(value, field, run.lock).holder("train") if value else run.holder("train")
        if "train" not in trainer.config.stages:
            raise UserError(
                f"{field}={value}: no {self.name}, for no stage trains one here: name the work directory of one"
                f"{self.otherwise}"
            )
        if value and not records.is_done(trainer, "train"):
            raise UserError(f"{field}={value}: its stage 'train' is not finished; train it first")
        return trainer

    def inputs(self, run: Run, value: str, field: str) -> Sequence[Path]:
        """The files outside of the run's work directory that tell whether the model has changed."""
        return (self.trainer(run, value, field).own_record("train"),) if value else ()

    def fetch(self, run: Run, value: str, field: str) -> None:
        """Copies the model down, where the field is the address of a work directory on a store.

        Raises:
          UserError: there is none, or the store does not answer.
        """
        if is_url(value):
            fetch_model(self.trainer(run, value, field))

    def check(self, run: Run, value: str, field: str) -> Run:
        """Checks that there is a model, with a vocabulary that is its own; returns the run that trained it.

        Raises:
          UserError: there is none.
        """
        trainer = self.trainer(run, value, field)
        if not self.is_of(recipe_of(trainer.config)):
            raise UserError(
                f"{field}: {trainer.place} trains {recipe_of(trainer.config).label}; name the work directory of a "
                f"{self.name} (config.recipe={self.name}){self.otherwise}"
            )
        check_vocabulary(trainer, trainer.folder, field)
        return trainer

    def load(self, run: Run, value: str, field: str) -> Trained:
        """The model that `check` has looked at.

        Raises:
          UserError: its parameters cannot be read.
        """
        trainer = self.trainer(run, value, field)
        vocabulary = trainer.load_vocabulary()
        config, model = load_parameters(trainer.folder, len(vocabulary), run.config.mesh)
        return Trained(config, vocabulary, model)


def open_trained(run: Run) -> Trained:
    """The model of the run or of its base.

    Raises:
      UserError: there is no finished checkpoint, or it was trained with another vocabulary than the run's.
    """
    folder, vocabulary = run.holder("train").folder, run.load_vocabulary()
    check_vocabulary(run, folder, "config.base")
    config, model = load_parameters(folder, len(vocabulary), run.config.mesh)
    return Trained(config, vocabulary, model)


def check_kind(run: Run, kind: str, needs: str, recipe: str) -> None:
    """Checks that the model of the run or of its base is of a kind.

    Args:
      kind: the name of its `Recipe.kind`.
      needs: the stage and what it needs, for the error.
      recipe: one that trains such a model.

    Raises:
      UserError: it is of another kind.
    """
    holder = run.holder("train")
    trained = recipe_of(holder.config)
    if trained.kind.name != kind:
        raise UserError(
            f"{needs}, and {holder.place} has {trained.label}: set config.recipe={recipe}, or config.base to a run of "
            "one"
        )
