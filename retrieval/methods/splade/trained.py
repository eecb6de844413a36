"""Trained models of sparse vectors: of this run or its base, of another work directory, or a folder of others."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from retrieval.data.tokenizers import prefixes
from retrieval.methods.splade import folder as splade_folder
from retrieval.methods.splade import sparse_store
from retrieval.methods.splade.folder import SparseFolder
from retrieval.methods.splade.model import BY_IDF, ENCODED
from retrieval.methods.splade.recipe import SpladeRecipe
from retrieval.methods.splade.term_encoder import TermEncoder
from retrieval.models.encoder_folder import is_encoder
from retrieval.models.module_folder import COSINE
from retrieval.pipeline.run import Run
from retrieval.recipes import bert_weights, module_fields
from retrieval.recipes.trained_model import TRAINED, Trained, TrainedKind
from retrieval.runtime import artefacts, hub
from retrieval.search.side_by_side import Search
from retrieval.stages.collection import CORPUS, open_collection

NAME, SYSTEM, MODEL = "sparse", "splade", "config.sparse.model"


class _SparseModels(TrainedKind):
    """Work directories of models of sparse vectors, and folders that `SparseEncoder` loads."""

    def inputs(self, run: Run, value: str, field: str) -> Sequence[Path]:
        """As `TrainedKind.inputs`."""
        if not (place := _published(value)):
            return super().inputs(run, value, field)
        return SparseFolder.open(place).files

    def check(self, run: Run, value: str, field: str) -> None:
        """As `TrainedKind.check`."""
        if place := _published(value):
            SparseFolder.open(place)
        else:
            super().check(run, value, field)

    def load(self, run: Run, value: str, field: str) -> Trained:
        """As `TrainedKind.load`."""
        self.check(run, value, field)
        place = _published(value)
        return _read(run.config, place) if place else super().load(run, value, field)

    def open(self, run: Run, value: str, field: str) -> TermEncoder:
        """As `TrainedKind.open`."""
        return TermEncoder(run.config, self.load(run, value, field))

    def read_folder(self, config: ConfigDict, folder: Path) -> TermEncoder | None:
        """As `TrainedKind.read_folder`."""
        return TermEncoder(config, _read(config, folder)) if splade_folder.is_sparse(folder) else None

    def over_passages(self, run: Run, words: Mapping[str, Search]) -> tuple[str, Search] | None:
        """As `TrainedKind.over_passages`."""
        maker, collection = run.holder(self.stage), open_collection(run, CORPUS)
        folder = maker.folder / NAME / CORPUS
        if not folder.exists():
            return None
        encoder = self.open(maker, maker.config.sparse.model, MODEL)
        search = encoder.over(sparse_store.load(folder, sum(1 for _ in collection.candidates())))
        return SYSTEM, lambda queries, k: search(encoder.encode_queries(queries), k)


def _read(own: ConfigDict, place: Path) -> Trained:
    """The model of a folder, whose lengths and prompts are those of the folder."""
    found, config = SparseFolder.open(place), own.copy_and_resolve_references()
    encoder = found.encoder
    config.recipe, config.model.sparse_queries = "splade", BY_IDF if found.table else ENCODED
    query, document = found.lengths
    config.data.update(query_length=query, document_length=document, titles=prefixes.JOINED)
    config.model.update(module_fields.encoder_fields(encoder))
    config.model.update(encoder="transformer", remat="none", positions=encoder.sizes["max_length"], dropout=0.0)
    prompts = module_fields.prompts(place, found.settings)
    config.data.update(dict(zip(prefixes.NAMES, prompts)))
    vocabulary = bert_weights.vocabulary_of(encoder)
    model = SpladeRecipe(config).build(len(vocabulary))
    model.normalize = found.settings.get("similarity_fn_name") in COSINE
    model.terms = found.settings.get("max_active_dims", 0)
    state = nnx.state(model, nnx.Param)
    like = nnx.to_pure_dict(state)
    head = encoder.mlm_head({name: like[name] for name in ("dense", "norm", "bias")})
    params = {**like, "encoder": encoder.encoder(like["encoder"]), **(head or {})}
    if found.table:
        params["idf"] = found.weights(len(vocabulary))
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, params))
    nnx.update(model, state)
    return Trained(config, vocabulary, model)


SPARSE_MODELS = _SparseModels(
    "splade", lambda recipe: isinstance(recipe, SpladeRecipe), ", or a folder that SparseEncoder loads", NAME
)
TRAINED.register("splade", SPARSE_MODELS)


def _published(value: str) -> Path | None:
    """The folder of weights that a field names, be it on the hub; None for a work directory, or nothing."""
    if not value:
        return None
    place = hub.local(value) if hub.is_name(value) else artefacts.local(value)
    return place if hub.is_name(value) or is_encoder(place) else None
