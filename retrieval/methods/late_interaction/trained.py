"""Trained models of late interaction: of this run or its base, of another work directory, or a folder of others."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from retrieval.common.runtime.model_folder import DOCUMENT, QUERY
from retrieval.methods.late_interaction import folder as late_folder
from retrieval.methods.late_interaction.folder import LateFolder
from retrieval.methods.late_interaction.maxsim_search import (
    Documents,
    InMemory,
    best,
    of_candidates,
    probe_centroids,
    ranked,
)
from retrieval.methods.late_interaction.recipe import LateRecipe
from retrieval.methods.late_interaction.token_encoder import Queries, TokenEncoder
from retrieval.methods.late_interaction.token_store import FOLDER, TokenStore
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking.collection import CORPUS, open_collection
from retrieval.runs.weights.trained_model import TRAINED, EncoderKind, TextEncoder, Trained, published_model
from retrieval.search import text_batches
from retrieval.search.fusion import Run as Lists
from retrieval.search.side_by_side import Search

MODEL, SYSTEM = "config.late.model", "maxsim"


class LateModel(TextEncoder):
    """A trained model of late interaction on the devices of this host."""

    similarity = "MaxSim"

    def __init__(self, run: ConfigDict, trained: Trained):
        """Args are the run's config and the model."""
        super().__init__(run, trained)
        encoder = TokenEncoder(self.config, self.vocabulary, self.model, local_mesh(self.config))
        params = parameters_of(self.model)
        self._queries, self._documents = encoder.queries(params), encoder.documents(params)

    def queries(self, texts: Sequence[str]) -> Queries:
        """The vectors of the tokens of queries."""
        return self._queries(self.rows(QUERY, texts))

    def embed(self, side: str, rows: Sequence[Sequence[int]], /) -> list[np.ndarray]:
        """The vectors of the tokens that count of each row, float32 [T, E]."""
        if side == DOCUMENT:
            return self._documents(rows)
        return [vectors[mask] for vectors, mask in zip(*self._queries(rows))]

    def over(self, documents: list[np.ndarray] | Documents, /) -> Callable[[Sequence[np.ndarray], int], Lists]:
        """Exact MaxSim with every document."""
        documents = InMemory(documents) if isinstance(documents, list) else documents
        length, longest = self.config.data.query_length, self.config.data.document_length

        def search(queries: Sequence[np.ndarray], k: int) -> Lists:
            padded = Queries.padded(queries, text_batches.few(max(1, len(queries))), length)
            scores_QK, rows_QK = ranked(padded, documents, longest, k)
            return scores_QK[: len(queries)], rows_QK[: len(queries)]

        return search

    def write(self, folder: Path) -> None:
        """Writes the model and its tokenizer into a folder that is there, for PyLate."""
        late_folder.write(folder, self.model, self.config, self.vocabulary)


class _LateModels(EncoderKind):
    """Work directories of models of late interaction, and folders of PyLate's and Stanford's."""

    says_so, opened, encoder = staticmethod(late_folder.is_late), LateFolder.open, LateModel

    def read(self, config: ConfigDict, folder: Path) -> Trained:
        """As `EncoderKind.read`."""
        opened = self.opened(folder)
        fields = opened.fields | {"recipe": self.name}
        return published_model(config, fields, opened.encoder, lambda _: {"projection": {"kernel": opened.kernel()}})

    def over_passages(self, run: Run, words: Mapping[str, Search]) -> tuple[str, Search] | None:
        """As `TrainedKind.over_passages`.

        With `late.probes` centroids find what is ranked, else the first of `late.systems`; with `late.exact`, or
        without either, all are compared.
        """
        maker = run.owner(self.stage)
        folder = maker.folder / FOLDER / CORPUS
        if not folder.exists():
            return None
        store, model = TokenStore(folder, "candidates"), self.open(maker, maker.config.late.model, MODEL)
        store.check("candidates", [each.id for each in open_collection(run, CORPUS).candidates()])
        fields, search = run.config.late, model.over(store)
        first = next((name for name in fields.systems if name in words), "")
        if fields.exact or not (fields.probes or first):
            return SYSTEM, lambda queries, k: search(model.encode_query(queries), k)
        lists = store.centroid_lists() if fields.probes else None

        def rank(queries: Sequence[str], k: int) -> Lists:
            tokens, depth = model.queries(queries), max(k, fields.depth)
            rows_QK = probe_centroids(lists, tokens, fields.probes, depth) if lists else words[first](queries, depth)[1]
            return best(of_candidates(tokens, store, rows_QK), rows_QK, k)

        return SYSTEM, rank


LATE_MODELS = _LateModels(
    "late_interaction", lambda recipe: isinstance(recipe, LateRecipe), ", or a folder that PyLate loads", "tokens"
)
TRAINED.register("late_interaction", LATE_MODELS)
