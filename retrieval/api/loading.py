"""Models that are opened by a path: what `retrieval.load` does."""

import os
from pathlib import Path

from retrieval.api import stored_index
from retrieval.api.document_index import DocumentIndex
from retrieval.api.loaded_model import Model
from retrieval.api.text_encoders import TowerEncoder, VectorEncoder
from retrieval.common.errors import UserError, hub_hint
from retrieval.common.runtime import artefacts, hub
from retrieval.common.runtime.store import is_url
from retrieval.config import experiment
from retrieval.models.encoders.family import is_encoder
from retrieval.recipes import towers
from retrieval.recipes.parameters import parameters_of
from retrieval.recipes.recipe import recipe_of
from retrieval.runs.pipeline import downloads, preflight, records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import exported_towers, trained_run
from retrieval.runs.weights.exported_towers import Chosen, LoadedTowers
from retrieval.runs.weights.trained_model import TRAINED

_BATCH_TOKENS = 16_384  # of a published model: larger batches of texts of many lengths are mostly padding
_READS_THE_MODEL = "export"  # a stage that reads what is copied down of a run on a store


def load(path: str | Path, query_prompt: str = "", document_prompt: str = "", truncate_dim: int = 0) -> Model:
    """The model of a finished run, of an export, or another published one.

    Args:
      path: the work directory of a run, which may be on an object store; or the folder that the stage `export`,
        sentence-transformers, PyLate or transformers wrote, or its name on Hugging Face's hub, such as 'hf:me/towers'.
      query_prompt, document_prompt: names of two of the prompts of a published model, where it has several; by default
        those of queries and of documents.
      truncate_dim: how many dimensions its embeddings keep, the first ones; by default as many as it says.

    Raises:
      UserError: there is none, or a part of it is not understood, or the training has not ended.
    """
    chosen = Chosen(query_prompt, document_prompt, truncate_dim)
    path = os.path.expanduser(path)
    copy = artefacts.copy_of(path) if is_url(path) else None
    folder = copy.folder if copy else hub.path(path)
    if is_encoder(folder):
        config = experiment.defaults()
        config.model.dtype, config.encode.batch_tokens = "float32", _BATCH_TOKENS
        for kind in TRAINED.values():
            if encoder := kind.read_folder(config, folder):
                _check_nothing_chosen(kind.name, chosen)
                return Model(VectorEncoder(encoder, kind), path)
        return Model(TowerEncoder(exported_towers.read(folder, config, chosen)), path, chosen=chosen)
    if not (folder / preflight.CONFIG).exists():
        raise UserError(f"{path}: neither a work directory nor a folder of a published model{hub_hint(path)}")
    if any(chosen[:2]):
        raise UserError(f"{path}: a run has prompts of its own: leave these out, and give prompt_name when you encode")
    config = preflight.read_config(folder)
    experiment.load_plugins(config.plugins)
    run = Run(config, folder, Path(), remote=copy)
    downloads.bring(run, [_READS_THE_MODEL])
    trained = run.owner("train")
    if trained.lists("train") and not records.is_done(trained, "train"):
        again = f"python -m retrieval.main --workdir={trained.display_path}"
        raise UserError(f"{trained.display_path}: the training has not ended: `{again}` goes on with it")
    return of_run(run, truncate_dim)


def load_index(folder: str | Path, model: Model | str | Path | None = None) -> DocumentIndex:
    """The index that `DocumentIndex.save` wrote.

    Args:
      model: that it was made with; by default it is loaded from where it was.

    Raises:
      UserError: it is damaged, or of another model.
    """
    stored = stored_index.read(Path(folder).expanduser())
    model = load(model) if isinstance(model, str | Path) else model
    return (model or load(stored.model, *stored.chosen)).over_stored(stored, is_checked=False)


def of_run(run: Run, truncate_dim: int = 0) -> Model:
    """The model of a run whose files are here.

    Args:
      truncate_dim: dimensions of an embedding that are kept; by default as many as the run's own have.

    Raises:
      UserError: it has trained nothing that encodes, reranks or reads; or has fewer dimensions.
    """
    trained = recipe_of(run.owner("train").config)
    if kind := next((kind for kind in TRAINED.values() if kind.is_of(trained)), None):
        _check_nothing_chosen(kind.name, Chosen(truncate_dim=truncate_dim))
        encoder = VectorEncoder(kind.open(run, "", "config.base"), kind) if kind.stage else None
        return Model(encoder, run.display_path, run)
    config = towers.truncated(trained_run.of_towers(run), truncate_dim, "truncate_dim")
    vocabulary = run.load_vocabulary()
    params = parameters_of(trained_run.load_towers(run, len(vocabulary)))
    exported = LoadedTowers(config.copy_and_resolve_references(), vocabulary, params)
    return Model(TowerEncoder(exported), run.display_path, run, ("", "", truncate_dim))


def _check_nothing_chosen(kind: str, chosen: Chosen) -> None:
    """Checks that nothing is chosen that only towers have."""
    if any(chosen):
        names = "query_prompt, document_prompt and truncate_dim"
        raise UserError(f"a model of the kind '{kind}' makes no embeddings, and has its own markers: leave {names} out")
