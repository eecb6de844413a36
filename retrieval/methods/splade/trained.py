"""Trained models of sparse vectors: of this run or its base, of another work directory, or a folder of others."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.data.tokenizers import prefixes
from retrieval.methods.splade import folder as splade_folder
from retrieval.methods.splade import sparse_store
from retrieval.methods.splade.folder import SparseFolder
from retrieval.methods.splade.model import BY_IDF, ENCODED
from retrieval.methods.splade.recipe import SpladeRecipe
from retrieval.methods.splade.term_encoder import TermEncoder
from retrieval.models.module_folder import COSINE
from retrieval.pipeline.run import Run
from retrieval.recipes import module_fields
from retrieval.recipes.trained_model import TRAINED, PublishedKind, Trained, published_model
from retrieval.search.side_by_side import Search
from retrieval.stages.collection import CORPUS, open_collection

NAME, SYSTEM, MODEL = "sparse", "splade", "config.sparse.model"


class _SparseModels(PublishedKind):
    """Work directories of models of sparse vectors, and folders that `SparseEncoder` loads."""

    def check_folder(self, run: Run, folder: Path, field: str) -> Sequence[Path]:
        """As `PublishedKind.check_folder`."""
        return SparseFolder.open(folder).files

    def load(self, run: Run, value: str, field: str) -> Trained:
        """As `TrainedKind.load`."""
        self.check(run, value, field)
        place = self.published(value, field)
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


def _read(config: ConfigDict, place: Path) -> Trained:
    """The model of a folder, whose lengths and prompts are those of the folder."""
    found = SparseFolder.open(place)
    query, document = found.lengths
    fields = {f"model.{name}": x for name, x in module_fields.encoder_fields(found.encoder).items()}
    fields |= {"recipe": "splade", "model.sparse_queries": BY_IDF if found.table else ENCODED}
    fields |= {"data.query_length": query, "data.document_length": document, "data.titles": prefixes.JOINED}
    prompts = module_fields.prompts(place, found.settings)
    fields |= {f"data.{name}": prompt for name, prompt in zip(prefixes.NAMES, prompts)}

    def head(like: Mapping[str, Any]) -> Mapping[str, Any]:
        table = {"idf": found.weights(len(like["idf"]))} if found.table else {}
        return table | (found.encoder.mlm_head({name: like[name] for name in ("dense", "norm", "bias")}) or {})

    trained = published_model(config, fields, found.encoder, head)
    trained.model.normalize = found.settings.get("similarity_fn_name") in COSINE
    trained.model.terms = found.settings.get("max_active_dims", 0)
    return trained


SPARSE_MODELS = _SparseModels(
    "splade", lambda recipe: isinstance(recipe, SpladeRecipe), ", or a folder that SparseEncoder loads", NAME
)
TRAINED.register("splade", SPARSE_MODELS)
