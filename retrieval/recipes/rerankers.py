"""Trained rerankers, whoever trained them: this run or its base, another work directory, or a Hugging Face folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.models import cross_encoder_folder
from retrieval.models.cross_encoder import CrossEncoder
from retrieval.models.hugging_face import BertFolder, is_bert
from retrieval.models.transformer import TransformerConfig
from retrieval.pipeline import records
from retrieval.recipes import bert_weights, initial_parameters
from retrieval.recipes.pair_scores import Lengths
from retrieval.recipes.recipe import recipe_of
from retrieval.runtime import store_copy
from retrieval.runtime.store import is_url
from retrieval.stage_outputs import Run


class Reranker(NamedTuple):
    """A trained model with what its texts are tokenised with, and the tokens that it reads."""

    model: CrossEncoder
    vocabulary: Vocabulary
    lengths: Lengths


def inputs(run: Run, value: str, field: str) -> Sequence[Path]:
    """The files outside of the work directory that tell whether a reranker has changed.

    Args:
      value: of the field: '' for the reranker that the run or its base trains, a work directory, or a folder.

    Raises:
      UserError: there is no reranker.
    """
    if not value:
        return ()
    if _is_folder_of_weights(value):
        folder = BertFolder.open(Path(value))
        return [
            *folder.files,
            *cross_encoder_folder.settings(folder),
            *vocabularies.files(vocabularies.find(folder.path)),
        ]
    return (trained_in(run, value, field).own_record("train"),)


def has_reranker(run: Run, value: str) -> bool:
    """Whether a field names a reranker, or the run or its base trains one."""
    trainer = run.holder("train").config
    return bool(value) or ("train" in trainer.stages and recipe_of(trainer).reranks)


def check(run: Run, value: str, field: str) -> None:
    """Checks that there is a reranker, with a vocabulary that is its own.

    Raises:
      UserError: there is none, or it does not fit the config.
    """
    if value and _is_folder_of_weights(value):
        _check_folder(BertFolder.open(Path(value)), run.config, field)
        return
    trainer = trained_in(run, value, field)
    if not recipe_of(trainer.config).reranks:
        raise UserError(
            f"{field}: {trainer.place} trains {recipe_of(trainer.config).label}; name the work directory of a reranker "
            "(config.recipe=reranker), or a folder of a cross-encoder"
        )
    initial_parameters.check_vocabulary(trainer, trainer.folder, field)


def open_reranker(run: Run, value: str, field: str) -> Reranker:
    """The reranker that a field names, as `inputs` has it.

    Raises:
      UserError: as `check`, or its parameters cannot be read.
    """
    check(run, value, field)
    if value and _is_folder_of_weights(value):
        return _of_folder(BertFolder.open(Path(value)), run.config)
    trainer = trained_in(run, value, field)
    vocabulary = trainer.load_vocabulary()
    config, model = initial_parameters.load_parameters(trainer.folder, len(vocabulary), run.config.mesh)
    assert isinstance(model, CrossEncoder), "`check` has looked at the recipe"
    return Reranker(model, vocabulary, Lengths(config.data.query_length, config.data.document_length))


def fetch(run: Run, value: str, field: str, what: str = "reranker") -> None:
    """Copies down the model that a field names, where that is the address of a work directory on a store.

    Args:
      what: kind of model it is to be, for errors.

    Raises:
      UserError: there is none, or the store does not answer.
    """
    if is_url(value):
        initial_parameters.fetch_model(trained_in(run, value, field, what))


def _is_folder_of_weights(value: str) -> bool:
    return is_bert(store_copy.local(value))


def trained_in(run: Run, value: str, field: str, what: str = "reranker") -> Run:
    """The run whose folder has the checkpoint of the model that a field names; '' is that of the run or its base.

    Args:
      what: kind of model it is to be, for errors.

    Raises:
      UserError: there is none.
    """
    trainer = Run.opened(value, field, run.lock).holder("train") if value else run.holder("train")
    if "train" not in trainer.config.stages:
        raise UserError(
            f"{field}={value}: no {what}, for no stage trains one here: name the work directory of one"
            + (", or a folder that sentence_transformers.CrossEncoder loads" if what == "reranker" else "")
        )
    if value and not records.is_done(trainer, "train"):
        raise UserError(f"{field}={value}: its stage 'train' is not finished; train it first")
    return trainer


def _check_folder(folder: BertFolder, config: ConfigDict, field: str) -> None:
    longest = folder.sizes["max_length"]
    for name in ("query_length", "document_length"):
        if config.data[name] > longest:
            raise UserError(
                f"{field}={folder.path}: a model of {longest} positions, and config.data.{name}={config.data[name]}: "
                f"set config.data.{name}={longest} at most"
            )
    query, row = config.data.query_length, config.data.document_length
    if row < query + 2:
        raise UserError(
            f"{field}={folder.path}: config.data.document_length={row} is of query and document together, and "
            f"config.data.query_length={query} leaves no room for a document: set config.data.query_length="
            f"{max(1, row // 2)} at most"
        )
    bert_weights.vocabulary_of(folder)


def _of_folder(folder: BertFolder, config: ConfigDict) -> Reranker:
    sizes = TransformerConfig(**folder.sizes, dropout=0.0, dtype=config.model.dtype, unroll=config.model.unroll)
    model = cross_encoder_folder.load_cross_encoder(folder, sizes)
    lengths = Lengths(config.data.query_length, config.data.document_length)
    return Reranker(model, bert_weights.vocabulary_of(folder), lengths)
