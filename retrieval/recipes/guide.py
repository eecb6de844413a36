"""Guides: trained towers whose scores say which negatives of a training batch are false ones. They stay as they are."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from retrieval import files
from retrieval.config import experiment
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import vocabularies
from retrieval.errors import UserError, hub_hint
from retrieval.models import two_tower
from retrieval.models.encoder_folder import is_encoder
from retrieval.pipeline.run import Run
from retrieval.recipes import exported_towers, module_fields, towers
from retrieval.recipes.encoder_sizes import longest_text
from retrieval.recipes.exported_towers import ExportedTowers
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.towers import Embedder
from retrieval.recipes.trained_model import TrainedKind
from retrieval.runtime import artefacts, hub, model_folder
from retrieval.search import encoding

FIELD = "config.train.guide"
_RUNS = TrainedKind("two_tower", lambda recipe: recipe.has_towers, ", or a folder that sentence-transformers saved")


class Guide:
    """A guide on the devices of this host, with its own tokenizer, prefixes and lengths."""

    def __init__(self, run: Run, given: ExportedTowers):
        """Args are the run that asks, for its mesh and batches, and the towers."""
        self._config, self._vocabulary, params = given
        self._batch_tokens, self._mesh = run.config.encode.batch_tokens, local_mesh(run.config)
        embedder = Embedder(self._config, self._vocabulary, self._mesh)
        self._queries, self._documents = embedder.queries(params), embedder.documents(params)

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings of queries, float32 [Q, H], of length 1."""
        return self._unit(self._queries, towers.query_tokens(self._config, self._vocabulary, texts))

    def documents(self, texts: Sequence[Candidate]) -> np.ndarray:
        """Embeddings of documents, float32 [N, H], of length 1; of long ones that of the beginning."""
        rows = towers.candidate_windows(self._config, self._vocabulary, texts)
        return self._unit(self._documents, (windows[0] for windows in rows))

    def _unit(self, embed: Callable[[np.ndarray], np.ndarray], tokens: Iterable[Sequence[int]]) -> np.ndarray:
        longest = longest_text(self._config)
        values_NH = encoding.encode_rows(tokens, embed, self._batch_tokens, longest, self._mesh.size)
        return values_NH / np.maximum(np.linalg.norm(values_NH, axis=1, keepdims=True), 1e-12)


def open_guide(run: Run) -> Guide:
    """The guide that a run's config names.

    Raises:
      UserError: as `check`, or its parameters cannot be read.
    """
    value = run.config.train.guide
    if folder := _published(value):
        config = experiment.defaults()  # a guide is as it was published, whatever the run trains
        config.mesh = run.config.mesh
        return Guide(run, exported_towers.read(folder, config))
    found = _RUNS.load(run, value, FIELD)
    return Guide(run, ExportedTowers(found.config, found.vocabulary, parameters_of(found.model)))


def fetch(run: Run) -> None:
    """Copies down the guide of a run's config, where that is on a store."""
    _RUNS.fetch(run, run.config.train.guide, FIELD)


def check(run: Run) -> None:
    """Checks that a run's config names a guide, if it names anything.

    Raises:
      UserError: there is no such model, or it has no towers.
    """
    if not (value := run.config.train.guide):
        return
    if not _published(value):
        _RUNS.check(run, value, FIELD)
    size(run.config)


def size(config: ConfigDict) -> int:
    """The size of the embeddings of the guide that a config names.

    Raises:
      UserError: there is no such model.
    """
    if folder := _published(config.train.guide):
        config = experiment.defaults()
        exported_towers.set_sizes(folder, config)
    else:
        config = _trainer(config.train.guide).config
    model = config.model
    return model.truncate_dim or two_tower.full_size(model.embed_dim, model.head, model.hidden_size)


def inputs(value: str) -> list[Path]:
    """The files that tell whether a guide has changed; none of ''."""
    if not value:
        return []
    if not (folder := _published(value)):
        return [_trainer(value).own_record("train")]
    folders = dict.fromkeys(module_fields.open_towers(folder))
    of_towers = [path for tower in folders for path in (*tower.bert.files, *model_folder.module_files(tower.path))]
    vocabulary = vocabularies.files(vocabularies.find(folder))
    return list(dict.fromkeys([*of_towers, *model_folder.module_files(folder), *vocabulary]))


def fingerprint(value: str) -> str:
    """Of the contents of a guide's files: examples say with it whose embeddings they have."""
    return files.fingerprint([[path.name, *(one["sum"] for one in files.describe(path))] for path in inputs(value)])


def _trainer(value: str) -> Run:
    return Run.opened(value, FIELD, Path()).holder("train")


def _published(value: str) -> Path | None:
    """The folder of published towers; None for a work directory.

    Raises:
      UserError: there is neither.
    """
    folder = hub.local(value) if hub.is_name(value) else artefacts.local(value)
    if is_encoder(folder):
        return folder
    if hub.is_name(value) or not folder.exists():
        raise UserError(
            f"{FIELD}={value}: no towers; name a work directory of two towers, or a folder that sentence-transformers "
            f"saved{hub_hint(value)}"
        )
    return None
