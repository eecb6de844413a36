"""Trained models of sparse vectors: of this run or its base, of another work directory, or a folder of others."""

from collections.abc import Mapping
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
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking.collection import CORPUS, open_collection
from retrieval.runs.weights import module_fields
from retrieval.runs.weights.trained_model import TRAINED, EncoderKind, Trained, published_model
from retrieval.search.side_by_side import Search

NAME, SYSTEM, MODEL = "sparse", "splade", "config.sparse.model"


class _SparseModels(EncoderKind):
    """Work directories of models of sparse vectors, and folders that `SparseEncoder` loads."""

    says_so, opened, encoder = staticmethod(splade_folder.is_sparse), SparseFolder.open, TermEncoder

    def read(self, config: ConfigDict, folder: Path) -> Trained:
        """As `EncoderKind.read`."""
        opened = self.opened(folder)
        fields = {f"model.{name}": x for name, x in module_fields.encoder_fields(opened.encoder).items()}
        fields |= {"recipe": self.name, "model.sparse_queries": BY_IDF if opened.table else ENCODED}
        fields |= {"data.titles": prefixes.JOINED, **opened.texts}

        def head(like: Mapping[str, Any]) -> Mapping[str, Any]:
            table = {"idf": opened.weights(len(like["idf"]))} if opened.table else {}
            return table | (opened.encoder.mlm_head({name: like[name] for name in splade_folder.HEAD}) or {})

        trained = published_model(config, fields, opened.encoder, head)
        trained.model.normalize = opened.settings.get("similarity_fn_name") in COSINE
        trained.model.terms = opened.settings.get(splade_folder.MOST_TERMS, 0)
        return trained

    def over_passages(self, run: Run, words: Mapping[str, Search]) -> tuple[str, Search] | None:
        """As `TrainedKind.over_passages`."""
        maker, collection = run.owner(self.stage), open_collection(run, CORPUS)
        folder = maker.folder / NAME / CORPUS
        if not folder.exists():
            return None
        encoder = self.open(maker, maker.config.sparse.model, MODEL)
        search = encoder.over(sparse_store.load(folder, sum(1 for _ in collection.candidates())))
        return SYSTEM, lambda queries, k: search(encoder.encode_query(queries), k)


SPARSE_MODELS = _SparseModels(
    "splade", lambda recipe: isinstance(recipe, SpladeRecipe), ", or a folder that SparseEncoder loads", NAME
)
TRAINED.register("splade", SPARSE_MODELS)
