"""Trained rerankers, whoever trained them: this run or its base, another work directory, or a Hugging Face folder."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.template import PairTemplate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.reranker import model as cross_encoder
from retrieval.methods.reranker import modules, yes_no
from retrieval.methods.reranker.model import CrossEncoder, check_cross_encoder, load_cross_encoder
from retrieval.methods.reranker.modules import ModularCrossEncoder
from retrieval.methods.reranker.yes_no import JudgedRows
from retrieval.models import known_keys
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.module_folder import SETTINGS
from retrieval.models.transformer_config import TransformerConfig
from retrieval.recipes.inference import Inference
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import published_weights as bert_weights
from retrieval.runs.weights.trained_model import TRAINED, PublishedKind
from retrieval.search import encoding, text_batches

_Model = CrossEncoder | ModularCrossEncoder

_FEW = 32  # pairs that are scored as one batch
_PAIRS = 8192  # of a file of scores at most
_COMPILED = 512  # tokens of the longest rows that are compiled before they come


def pair_of(vocabulary: Vocabulary) -> PairTemplate:
    """What stands around the query and the document of a row."""
    if vocabulary.pair_template is None:
        raise UserError("the tokenizer joins a query and a document in a way that is not known: take another model")
    return vocabulary.pair_template


def pair_scorer(
    config: ConfigDict, model: _Model, pair: PairTemplate, mesh: jax.sharding.Mesh, value: str = "scores"
) -> Callable[[Any], encoding.Embed]:
    """From parameters to a function of rows [B, L] to "scores" or "logits" [B, 1]; compiled once per shape."""
    sep_id, place = pair.change
    inference = Inference(config, model, sep_id, mesh, place)
    return inference.compiled(lambda model, pairs: getattr(model, value)(pairs)[:, None])


class JoinedRows(NamedTuple):
    """Pairs as rows `[CLS] query [SEP] document [SEP]` of at most `length` tokens.

    Attributes:
      query: the tokens that a query is cut to, with what stands around it alone, as in training; the document is then
        cut to the rest. 0: the longer of the two is cut first, as transformers does.
    """

    vocabulary: Vocabulary
    length: int
    query: int = 0

    def begin(self, queries: Sequence[str]) -> list[Any]:
        """The tokens of each query."""
        ids, room = self.vocabulary.encode_batch(queries), max(0, self.query - self.vocabulary.template.size())
        return [each[:room] for each in ids] if self.query else ids

    def of(self, beginnings: Iterable[Any], documents: Sequence[Candidate]) -> list[list[int]]:
        """The row of each document, of the tokens of its title and its text, behind its query."""
        titles = self.vocabulary.encode_batch([each.title for each in documents])
        texts = self.vocabulary.encode_batch([each.text for each in documents])
        pair, around, rows = pair_of(self.vocabulary), self.vocabulary.template, []
        parted = {*around.between, *around.behind}
        for query, title, text in zip(beginnings, titles, texts):
            if not self.query:
                rows.append(pair.row(query, [*title, *text], self.length))
                continue
            # As `recipe` makes rows of stored documents, which are cut alone first.
            stored = self.vocabulary.pair(title, text, self.length)[len(around.before) :]
            row = [*pair.before, *query, *pair.between]
            room = max(0, self.length - len(row) - len(pair.behind))
            rows.append([*row, *[id for id in stored if id not in parted][:room], *pair.behind])
        return rows

    def with_room(self, room: int) -> "JoinedRows":
        """The same with so many more tokens of a query, and of a row."""
        return self._replace(length=self.length + room, query=self.query and self.query + room)


class Reranker:
    """A trained cross-encoder on the devices of this host; as `PairScorer`. Threads may ask together."""

    def __init__(self, config: ConfigDict, model: _Model, rows: JoinedRows | JudgedRows):
        """Args are the run's config, the model, and the rows that it reads, with its vocabulary."""
        self._model, self._rows, vocabulary = model, rows, rows.vocabulary
        mesh, parameters = local_mesh(config), parameters_of(model)
        self._sizes = {"batch_tokens": config.encode.batch_tokens, "longest": rows.length, "multiple": mesh.size}
        self._shard_size = min(config.encode.shard_size, _PAIRS)
        pair = PairTemplate() if isinstance(rows, JudgedRows) else pair_of(vocabulary)
        self._score = pair_scorer(config, model, pair, mesh)(parameters)
        self._logit = pair_scorer(config, model, pair, mesh, "logits")(parameters)

    def scores(self, queries: Sequence[str], documents: Sequence[Candidate]) -> np.ndarray:
        """As `PairScorer.scores`."""
        rows = self._rows.of(self._rows.begin(queries), documents)
        return encoding.encode_rows(rows, self._score, **self._sizes).reshape(-1)

    def scores_of(self, query: str, documents: Sequence[Candidate]) -> np.ndarray:
        """As `PairScorer.scores_of`."""
        return self.scores_of_logits(self.logits(self.rows_of(query, documents)))

    def rows_of(self, query: str, documents: Sequence[Candidate], room: int = 0) -> list[list[int]]:
        """As `PairScorer.rows_of`."""
        rows = self._rows.with_room(room) if room else self._rows
        return rows.of(rows.begin([query]) * len(documents), documents)

    def logits(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """As `PairScorer.logits`."""
        longest, multiple = self._rows.length, self._sizes["multiple"]
        parts = (rows[start : start + _FEW] for start in range(0, len(rows), _FEW))
        logits = [encoding.encode_few(part, self._logit, longest, multiple)[:, 0] for part in parts]
        return np.concatenate([np.zeros(0, np.float32), *logits])

    def scores_of_logits(self, logits: np.ndarray) -> np.ndarray:
        """As `PairScorer.scores_of_logits`: a score is a probability, its logarithm, or the logit."""
        if not self._model.sigmoid and self._model.classes == 1:
            return logits
        logarithms = -np.logaddexp(0, -logits)
        return np.exp(logarithms) if self._model.sigmoid else logarithms

    def compile(self, count: int) -> Iterator[None]:
        """As `PairScorer.compile`."""
        for length in text_batches.lengths_up_to(min(self._rows.length, _COMPILED)):
            self.logits([[0] * length] * min(count, _FEW))
            yield

    def write(self, folder: Path) -> None:
        """As `PairScorer.write`."""
        vocabulary, types = self._rows.vocabulary, self._model.encoder.config.type_vocab_size
        assert isinstance(self._model, CrossEncoder), "a run trains no other"
        if self._model.pooling == cross_encoder.LAST and vocabulary.pad_id in (-1, *vocabulary.template.behind):
            why = "transformers pads with the token that ends every text here, and would take the one before it"
            raise UserError(f"stage 'export': {why}; rerank with the work directory")
        cross_encoder.write_cross_encoder(folder, self._model, max(vocabulary.pad_id, 0))
        vocabulary.export(folder, length=self._rows.length, types=types, pair=vocabulary.pair_template)

    def score_all(
        self,
        folder: Path,
        queries: Sequence[str],
        pairs: Callable[[], Iterable[tuple[int, Any]]],
        total: int,
        text_of: Callable[[Any], Candidate] = lambda document: document,
    ) -> tuple[np.ndarray, float | None]:
        """As `PairScorer.score_all`."""
        if not total:
            return np.zeros(0, np.float32), None
        beginnings, scored = self._rows.begin(queries), 0

        def rows(members: Sequence[tuple[int, Any]]) -> list[list[list[int]]]:
            nonlocal scored
            scored += len(members)
            documents = [text_of(document) for _, document in members]
            return [[row] for row in self._rows.of((beginnings[query] for query, _ in members), documents)]

        began = time.perf_counter()
        texts = ((str(query), (query, document)) for query, document in pairs())
        encoding.encode(folder, "pairs", texts, total, rows, self._score, **self._sizes, shard_size=self._shard_size)
        seconds = time.perf_counter() - began
        return encoding.load_of_all_hosts(folder, "pairs")[:, 0], seconds / scored if scored else None


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


def _checked(folder: EncoderFolder, length: int, field: str) -> tuple[JoinedRows | JudgedRows, Callable[..., Any]]:
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
    most = folder.sizes["max_length"]
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        record = files.read_json(path) if (path := folder.place / name).is_file() else {}
        if isinstance(record, dict) and record.get(key) is not None:
            return min(most, known_keys.whole(path, record, key))
    return most
