"""Trained models of late interaction: of this run or its base, of another work directory, or a folder of others."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.late_interaction import exact
from retrieval.methods.late_interaction import folder as late_folder
from retrieval.methods.late_interaction.folder import LateFolder
from retrieval.methods.late_interaction.marks import NONE
from retrieval.methods.late_interaction.model import LateInteraction
from retrieval.methods.late_interaction.recipe import LateRecipe
from retrieval.methods.late_interaction.token_encoder import Queries, TokenEncoder
from retrieval.methods.late_interaction.token_store import FOLDER, TokenStore
from retrieval.models.encoder_folder import EncoderFolder, is_encoder
from retrieval.models.rngs import Rngs
from retrieval.models.transformer_config import TransformerConfig
from retrieval.pipeline.run import Run
from retrieval.recipes import bert_weights, encoding_cost
from retrieval.recipes.encoder_sizes import encoder_sizes
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.towers import candidate_windows, query_tokens
from retrieval.recipes.trained_model import TRAINED, TrainedKind
from retrieval.runtime import artefacts, hub, model_folder
from retrieval.search import text_batches
from retrieval.search.fusion import Run as Lists
from retrieval.search.side_by_side import Search
from retrieval.stages import costs
from retrieval.stages.collection import CORPUS, open_collection

MODEL, SYSTEM = "config.late.model", "maxsim"


class LateModel:
    """A trained model of late interaction on the devices of this host: a `TextEncoder`.

    Attributes:
      config: that it was trained with, with how the run encodes.
      queries: texts to the vectors of their tokens.
      documents: candidates to those of each, [T, E].
    """

    similarity = "MaxSim"
    queries: Callable[[Sequence[str]], Queries]
    documents: Callable[[Iterable[Candidate]], list[np.ndarray]]

    def __init__(self, run: ConfigDict, config: ConfigDict, vocabulary: Vocabulary, model: LateInteraction):
        """Args are the run's config, that of the model, and the model with its vocabulary."""
        self.config, self.vocabulary, self.model = config.copy_and_resolve_references(), vocabulary, model
        self.config.encode, self.config.mesh = run.encode, run.mesh
        encoder, params = TokenEncoder(self.config, vocabulary, model, local_mesh(self.config)), parameters_of(model)
        self.queries, self.documents = encoder.queries(params), encoder.documents(params)

    def encode_queries(self, texts: Sequence[str], /) -> list[np.ndarray]:
        """The vectors of the tokens that count of each query, float32 [T, E]."""
        is_mean = self.config.model.late.mean  # which `queries` have in their vectors
        return [x[counts] * counts.sum() if is_mean else x[counts] for x, counts in zip(*self.queries(texts))]

    def encode_documents(self, items: Sequence[Candidate], /) -> list[np.ndarray]:
        """As `encode_queries`."""
        return self.documents(items)

    def over(self, documents: exact.Documents, /) -> Callable[[Sequence[np.ndarray], int], Lists]:
        """Exact MaxSim with every document."""
        length, longest = self.config.data.query_length, self.config.data.document_length

        def search(queries: Sequence[np.ndarray], k: int) -> Lists:
            padded = Queries.padded(queries, text_batches.few(max(1, len(queries))), length)
            if self.config.model.late.mean:
                padded.vectors[:] /= np.maximum(padded.counts.sum(axis=1), 1)[:, None, None]
            scores_QK, rows_QK = exact.ranked(padded, documents, longest, k)
            return scores_QK[: len(queries)], rows_QK[: len(queries)]

        return search

    def operations(self, queries: Sequence[str], documents: Sequence[Candidate]) -> dict[str, float]:
        """The operations to encode a query and a passage, of some of each."""
        config = self.config
        asked = query_tokens(config, self.vocabulary, queries)
        if config.model.late.expansion != NONE:
            asked = [[0] * config.data.query_length for _ in asked]
        rows = {
            costs.QUERY: [[ids] for ids in asked],
            costs.PASSAGE: [windows[:1] for windows in candidate_windows(config, self.vocabulary, documents)],
        }
        count = functools.partial(encoding_cost.operations, config, len(self.vocabulary))
        return {name: count(lambda model, text: model(text, None), of_side) for name, of_side in rows.items()}

    def write(self, folder: Path) -> None:
        """Writes the model and its tokenizer into a folder that is there, for PyLate."""
        late_folder.write(folder, self.model, self.config, self.vocabulary)


class _LateModels(TrainedKind):
    """Work directories of models of late interaction, and folders of PyLate's and Stanford's."""

    def inputs(self, run: Run, value: str, field: str) -> Sequence[Path]:
        """As `TrainedKind.inputs`."""
        if not (place := _published(value)):
            return super().inputs(run, value, field)
        encoder = EncoderFolder.open(place)
        return [
            *encoder.files,
            *model_folder.module_files(place),
            *(path for path in [place / late_folder.METADATA] if path.is_file()),
            *vocabularies.files(vocabularies.find(place)),
        ]

    def check(self, run: Run, value: str, field: str) -> None:
        """As `TrainedKind.check`."""
        if place := _published(value):
            LateFolder.open(place)
        else:
            super().check(run, value, field)

    def open(self, run: Run, value: str, field: str) -> LateModel:
        """As `TrainedKind.open`."""
        self.check(run, value, field)
        if place := _published(value):
            return read(run.config, place)
        config, vocabulary, model = self.load(run, value, field)
        return LateModel(run.config, config, vocabulary, model)

    def read_folder(self, config: ConfigDict, folder: Path) -> LateModel | None:
        """As `TrainedKind.read_folder`."""
        return read(config, folder) if late_folder.is_late(folder) else None

    def over_passages(self, run: Run, words: Mapping[str, Search]) -> tuple[str, Search] | None:
        """As `TrainedKind.over_passages`; with `late.exact`, or without one of `late.systems`, all are compared."""
        maker = run.holder(self.stage)
        folder = maker.folder / FOLDER / CORPUS
        if not folder.exists():
            return None
        store, model = TokenStore(folder, "candidates"), self.open(maker, maker.config.late.model, MODEL)
        store.check("candidates", [each.id for each in open_collection(run, CORPUS).candidates()])
        fields, search = run.config.late, model.over(store)
        first = next((name for name in fields.systems if name in words), "")
        if fields.exact or not first:
            return SYSTEM, lambda queries, k: search(model.encode_queries(queries), k)

        def rank(queries: Sequence[str], k: int) -> Lists:
            _, rows_QK = words[first](queries, max(k, fields.depth))
            longest = model.config.data.document_length
            return exact.best(exact.of_candidates(model.queries(queries), store, rows_QK, longest), rows_QK, k)

        return SYSTEM, rank


def read(config: ConfigDict, place: Path) -> LateModel:
    """The model of a folder of PyLate's or Stanford's.

    Args:
      config: all fields, of which those of the model and the lengths are replaced in a copy.

    Raises:
      UserError: as `LateFolder.open`, or its weights cannot be read.
    """
    found, own = LateFolder.open(place), config.copy_and_resolve_references()
    own.update_from_flattened_dict(found.fields)
    own.recipe = "late_interaction"
    own.model.update(encoder="transformer", remat="none", positions=found.encoder.sizes["max_length"], dropout=0.0)
    vocabulary = bert_weights.vocabulary_of(found.encoder)
    sizes = TransformerConfig(**encoder_sizes(own, len(vocabulary)))
    model = LateInteraction(sizes, own.model.embed_dim, rngs=Rngs(0))
    state = nnx.state(model, nnx.Param)
    like = nnx.to_pure_dict(state)
    params = {"encoder": found.encoder.encoder(like["encoder"]), "projection": {"kernel": found.kernel()}}
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, params))
    nnx.update(model, state)
    bert_weights.log_spare_rows(found.encoder, vocabulary)
    return LateModel(config, own, vocabulary, model)


LATE_MODELS = _LateModels(
    "late_interaction", lambda recipe: isinstance(recipe, LateRecipe), ", or a folder that PyLate loads", "tokens"
)
TRAINED.register("late_interaction", LATE_MODELS)


def _published(value: str) -> Path | None:
    """The folder of weights that a field names, be it on the hub; None for a work directory, or nothing."""
    if not value:
        return None
    place = hub.local(value) if hub.is_name(value) else artefacts.local(value)
    return place if hub.is_name(value) or is_encoder(place) else None
