"""Trained models of sparse vectors: of this run or its base, of another work directory, or a folder of others."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.data.tokenizers import prefixes, vocabularies
from retrieval.methods.splade import folder as splade_folder
from retrieval.methods.splade.recipe import SpladeRecipe
from retrieval.models.encoder_folder import EncoderFolder, is_encoder
from retrieval.pipeline.run import Run
from retrieval.recipes import bert_weights, module_fields
from retrieval.recipes.trained_model import TRAINED, Trained, TrainedKind
from retrieval.runtime import artefacts, hub, model_folder


class SparseModel(NamedTuple):
    """A trained model that can be written."""

    trained: Trained

    def write(self, folder: Path) -> None:
        """Writes the model and its tokenizer into a folder that is there, for sentence-transformers."""
        config, vocabulary, model = self.trained
        splade_folder.write(folder, model, config.data, vocabulary)


class _SparseModels(TrainedKind):
    """Work directories of models of sparse vectors, and folders that `SparseEncoder` loads."""

    def inputs(self, run: Run, value: str, field: str) -> Sequence[Path]:
        """As `TrainedKind.inputs`."""
        if not (place := _published(value)):
            return super().inputs(run, value, field)
        encoder, vocabulary = EncoderFolder.open(place), vocabularies.find(place)
        return [*encoder.files, *model_folder.module_files(place), *vocabularies.files(vocabulary)]

    def check(self, run: Run, value: str, field: str) -> None:
        """As `TrainedKind.check`."""
        if place := _published(value):
            splade_folder.check(place)
        else:
            super().check(run, value, field)

    def load(self, run: Run, value: str, field: str) -> Trained:
        """As `TrainedKind.load`."""
        self.check(run, value, field)
        place = _published(value)
        return _read(run, place) if place else super().load(run, value, field)

    def open(self, run: Run, value: str, field: str) -> SparseModel:
        """As `TrainedKind.open`."""
        return SparseModel(self.load(run, value, field))


def _read(run: Run, place: Path) -> Trained:
    """The model of a folder."""
    encoder, config = EncoderFolder.open(place), run.config.copy_and_resolve_references()
    config.recipe, config.model.sparse_queries = "splade", "encoder"
    config.model.update(module_fields.encoder_fields(encoder))
    config.model.update(encoder="transformer", remat="none", positions=encoder.sizes["max_length"], dropout=0.0)
    prompts = module_fields.prompts(place, splade_folder.settings(place))
    config.data.update(dict(zip(prefixes.NAMES, prompts)))
    vocabulary = bert_weights.vocabulary_of(encoder)
    model = SpladeRecipe(config).build(len(vocabulary))
    state = nnx.state(model, nnx.Param)
    like = nnx.to_pure_dict(state)
    head = encoder.mlm_head({name: like[name] for name in ("dense", "norm", "bias")})
    params = {**like, "encoder": encoder.encoder(like["encoder"]), **(head or {})}
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, params))
    nnx.update(model, state)
    return Trained(config, vocabulary, model)


SPARSE_MODELS = _SparseModels(
    "splade", lambda recipe: isinstance(recipe, SpladeRecipe), ", or a folder that SparseEncoder loads"
)
TRAINED.register("splade", SPARSE_MODELS)


def _published(value: str) -> Path | None:
    """The folder of weights that a field names, be it on the hub; None for a work directory, or nothing."""
    if not value:
        return None
    place = hub.local(value) if hub.is_name(value) else artefacts.local(value)
    return place if hub.is_name(value) or is_encoder(place) else None
