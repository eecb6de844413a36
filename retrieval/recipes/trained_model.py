"""The trained model of a run, opened for a stage that works with it."""

from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.recipes.initial_parameters import check_vocabulary, load_parameters
from retrieval.recipes.recipe import recipe_of
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
      kind: as `Recipe.kind`.
      needs: the stage and what it needs, for the error.
      recipe: one that trains such a model.

    Raises:
      UserError: it is of another kind.
    """
    holder = run.holder("train")
    trained = recipe_of(holder.config)
    if trained.kind != kind:
        raise UserError(
            f"{needs}, and {holder.place} has {trained.label}: set config.recipe={recipe}, or config.base to a run of "
            "one"
        )
