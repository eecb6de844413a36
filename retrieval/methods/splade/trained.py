"""Trained models of sparse vectors, for `export`."""

from pathlib import Path
from typing import NamedTuple

from retrieval.methods.splade import folder as splade_folder
from retrieval.methods.splade.recipe import SpladeRecipe
from retrieval.pipeline.run import Run
from retrieval.recipes.trained_model import TRAINED, Trained, TrainedKind


class SparseModel(NamedTuple):
    """A trained model that can be written."""

    trained: Trained

    def write(self, folder: Path) -> None:
        """Writes the model and its tokenizer into a folder that is there, for sentence-transformers."""
        config, vocabulary, model = self.trained
        splade_folder.write(folder, model, config.data, vocabulary)


class _SparseModels(TrainedKind):
    """Work directories of models of sparse vectors."""

    def open(self, run: Run, value: str, field: str) -> SparseModel:
        """As `TrainedKind.open`."""
        self.check(run, value, field)
        return SparseModel(self.load(run, value, field))


TRAINED.register("splade", _SparseModels("splade", lambda recipe: isinstance(recipe, SpladeRecipe)))
