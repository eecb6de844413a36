"""Trained rerankers, whoever trained them: this run or its base, another work directory, or a Hugging Face folder."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from retrieval import model_folder
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError, hub_hint
from retrieval.methods.reranker import export_folder
from retrieval.methods.reranker.model import CrossEncoder
from retrieval.methods.reranker.pair_scores import Lengths, PairScorer, document_bodies, joined, query_beginnings
from retrieval.models.hugging_face import BertFolder, is_bert
from retrieval.models.transformer import TransformerConfig
from retrieval.recipes import bert_weights
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.trained_model import TrainedKind
from retrieval.runtime import artefacts, hub
from retrieval.stage_outputs import Run

KIND = TrainedKind(
    "reranker", lambda recipe: recipe.reranks, ", or a folder that sentence_transformers.CrossEncoder loads"
)


class Reranker(NamedTuple):
    """A trained model with what its texts are tokenised with, and the tokens that it reads."""

    model: CrossEncoder
    vocabulary: Vocabulary
    lengths: Lengths


class RowScorer:
    """A reranker on the devices of this host, and the rows that it reads. Threads may ask together.

    Attributes:
      score: padded rows of ids [B, L] to scores [B, 1].
      vocabulary, lengths: those of the reranker.
      devices: how many there are.
    """

    def __init__(self, config: ConfigDict, reranker: Reranker):
        """Args are the run's config and the reranker."""
        model, self.vocabulary, self.lengths = reranker
        mesh = local_mesh(config)
        scorer = PairScorer(config, model, self.vocabulary.sep_id, mesh)
        self.score, self.devices = scorer.of(parameters_of(model)), mesh.size

    def beginnings(self, queries: Sequence[str]) -> list[list[int]]:
        """`[CLS] query [SEP]` of each query."""
        return query_beginnings(self.vocabulary, queries, self.lengths)

    def rows(self, beginnings: Iterable[Sequence[int]], documents: Sequence[Candidate]) -> list[list[int]]:
        """The row of each document, behind the beginning of its query."""
        bodies = document_bodies(self.vocabulary, documents, self.lengths)
        return [joined(query, body, self.vocabulary.sep_id, self.lengths) for query, body in zip(beginnings, bodies)]


def inputs(run: Run, value: str, field: str) -> Sequence[Path]:
    """The files outside of the work directory that tell whether a reranker has changed.

    Args:
      value: of the field: '' for the reranker that the run or its base trains, a work directory, or a folder.

    Raises:
      UserError: there is no reranker.
    """
    if folder := _weights(value, field):
        return [
            *folder.files,
            *export_folder.settings(folder),
            *model_folder.module_files(folder.path),
            *vocabularies.files(vocabularies.find(folder.path)),
        ]
    return KIND.inputs(run, value, field)


def check(run: Run, value: str, field: str) -> None:
    """Checks that there is a reranker, with a vocabulary that is its own.

    Raises:
      UserError: there is none, or it does not fit the config.
    """
    if folder := _weights(value, field):
        _check_folder(folder, run.config, field)
    else:
        KIND.check(run, value, field)


def open_reranker(run: Run, value: str, field: str) -> Reranker:
    """The reranker that a field names, as `inputs` has it.

    Raises:
      UserError: as `check`, or its parameters cannot be read.
    """
    check(run, value, field)
    if folder := _weights(value, field):
        return _of_folder(folder, run.config)
    config, vocabulary, model = KIND.load(run, value, field)
    assert isinstance(model, CrossEncoder), "`check` has looked at the recipe"
    return Reranker(model, vocabulary, Lengths(config.data.query_length, config.data.document_length))


def _weights(value: str, field: str) -> BertFolder | None:
    """The folder of weights that a field names, be it on the hub; None for a work directory.

    Raises:
      UserError: there is neither.
    """
    folder = hub.local(value) if hub.is_name(value) else artefacts.local(value)
    if value and is_bert(folder):
        return BertFolder.open(folder)
    if hub.is_name(value) or not folder.exists():
        raise UserError(
            f"{field}={value}: no cross-encoder of BERT's kind; name a work directory of a reranker, or a folder that "
            f"sentence_transformers.CrossEncoder loads{hub_hint(value)}"
        )
    return None


def _check_folder(folder: BertFolder, config: ConfigDict, field: str) -> None:
    longest = folder.sizes["max_length"]
    for name in ("query_length", "document_length"):
        if config.data[name] > longest:
            raise UserError(
                f"{field}={folder.path}: a model of {longest} positions, and config.data.{name}={config.data[name]}: "
                f"set config.data.{name}={longest} at most"
            )
    lengths = _lengths(folder, config)
    if lengths.row < lengths.query + lengths.separators + 1:
        raise UserError(
            f"{field}={folder.path}: config.data.document_length={lengths.row} is of query and document together, and "
            f"config.data.query_length={lengths.query} leaves no room for a document: set config.data.query_length="
            f"{max(1, lengths.row // 2)} at most"
        )
    export_folder.check_cross_encoder(folder)
    bert_weights.vocabulary_of(folder)


def _lengths(folder: BertFolder, config: ConfigDict) -> Lengths:
    return Lengths(config.data.query_length, config.data.document_length, export_folder.separators(folder))


def _of_folder(folder: BertFolder, config: ConfigDict) -> Reranker:
    vocabulary = bert_weights.vocabulary_of(folder)
    of_tokens = {**folder.sizes, "vocab_size": len(vocabulary)}
    sizes = TransformerConfig(**of_tokens, dropout=0.0, dtype=config.model.dtype, unroll=config.model.unroll)
    model = export_folder.load_cross_encoder(folder, sizes, vocabulary.published_ids)
    bert_weights.log_spare_rows(folder, vocabulary)
    return Reranker(model, vocabulary, _lengths(folder, config))
