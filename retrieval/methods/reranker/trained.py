"""Trained rerankers, whoever trained them: this run or its base, another work directory, or a Hugging Face folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.data.tokenizers import vocabularies
from retrieval.methods.reranker import model as cross_encoder
from retrieval.methods.reranker import modules, yes_no
from retrieval.methods.reranker.model import CrossEncoder, check_cross_encoder, load_cross_encoder
from retrieval.models import known_keys
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.module_folder import SETTINGS
from retrieval.models.transformer_config import TransformerConfig
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import published_weights as bert_weights
from retrieval.runs.weights.pair_scorer import JoinedRows, PairScorer, pair_of
from retrieval.runs.weights.trained_model import TRAINED, PublishedKind


class Reranker(PairScorer):
    """A trained cross-encoder, which other libraries may have too."""

    def write(self, folder: Path) -> None:
        """Writes the model and its tokenizer into a folder that is there, for Hugging Face's libraries."""
        vocabulary, types = self._rows.vocabulary, self._model.encoder.config.type_vocab_size
        assert isinstance(self._model, CrossEncoder), "a run trains no other"
        if self._model.pooling == cross_encoder.LAST and vocabulary.pad_id in (-1, *vocabulary.template.behind):
            why = "transformers pads with the token that ends every text here, and would take the one before it"
            raise UserError(f"stage 'export': {why}; rerank with the work directory")
        cross_encoder.write_cross_encoder(folder, self._model, max(vocabulary.pad_id, 0))
        vocabulary.export(folder, length=self._rows.length, types=types, pair=vocabulary.pair_template)


class _Rerankers(PublishedKind):
    """Work directories of rerankers, and folders of Hugging Face's, whoever made them."""

    def check_folder(self, run: Run, folder: Path, field: str) -> Sequence[Path]:
        """As `PublishedKind.check_folder`."""
        encoder = EncoderFolder.open(folder)
        _checked(encoder, run.config.rerank.length, field)
        tokenizer = vocabularies.files(vocabularies.find(folder))
        return [*encoder.files, *sorted(folder.glob(SETTINGS)), *model_folder.module_files(folder), *tokenizer]

    def open(self, run: Run, value: str, field: str) -> Reranker:
        """As `TrainedKind.open`."""
        if not (place := self.published(value, field)):
            self.check(run, value, field)
            config, vocabulary, model = self.load(run, value, field)
            length = run.config.rerank.length or config.data.document_length
            return Reranker(run.config, model, JoinedRows(vocabulary, length, config.data.query_length))
        folder, model = EncoderFolder.open(place), run.config.model
        rows, load = _checked(folder, run.config.rerank.length, field)
        sizes = {**folder.sizes, "vocab_size": len(rows.vocabulary), "dtype": model.dtype, "unroll": model.unroll}
        bert_weights.log_spare_rows(folder, rows.vocabulary)
        return Reranker(run.config, load(folder, TransformerConfig(**sizes, dropout=0.0)), rows)


RERANKERS = _Rerankers(
    "reranker", lambda recipe: recipe.reranks, ", or a folder that sentence_transformers.CrossEncoder loads"
)
TRAINED.register("reranker", RERANKERS)


def _checked(folder: EncoderFolder, length: int, field: str) -> tuple[JoinedRows, Callable[..., Any]]:
    """The rows that a folder's model reads, of so many tokens, and what loads it from the folder.

    A `length` of 0 is what the folder says.
    """
    vocabulary, most = bert_weights.vocabulary_of(folder), folder.sizes["max_length"]
    if length > most:
        raise UserError(f"{field}={folder.path}: a model of {most} positions: set config.rerank.length={most} at most")
    length = length or _own_length(folder)
    if yes_no.is_judge(folder):
        return yes_no.opened(folder, vocabulary, length, field)
    is_modular = modules.is_modular(folder)
    (modules.check if is_modular else check_cross_encoder)(folder)
    pair = pair_of(vocabulary)
    if pair.of_first == 0 and folder.sizes["type_vocab_size"] > 1:
        raise UserError(f"{folder.path}: its tokenizer gives token types that no token parts; take another model")
    if length < (least := sum(map(len, pair[:3])) + 2):
        raise UserError(f"config.rerank.length={length}: no room for a query and a document: set {least} at least")
    return JoinedRows(vocabulary, length), modules.load if is_modular else load_cross_encoder


def _own_length(folder: EncoderFolder) -> int:
    """The tokens that a folder's own library cuts a pair to: no more than its model has positions for."""
    most, path, key = folder.sizes["max_length"], folder.place / "sentence_bert_config.json", "max_seq_length"
    record = files.read_json(path) if path.is_file() else {}
    if isinstance(record, dict) and record.get(key) is not None:
        return min(most, known_keys.whole(path, record, key))
    return known_keys.token_limit(folder.place, most)
