"""Trained rerankers, whoever trained them: this run or its base, another work directory, or a Hugging Face folder."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import tokenizer_files, vocabularies
from retrieval.data.tokenizers.template import Template
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError, hub_hint
from retrieval.methods.reranker import model as cross_encoder
from retrieval.methods.reranker import yes_no
from retrieval.methods.reranker.model import CrossEncoder
from retrieval.methods.reranker.yes_no import JudgedRows
from retrieval.models.encoder_folder import EncoderFolder, is_encoder
from retrieval.models.transformer_config import TransformerConfig
from retrieval.pipeline.run import Run
from retrieval.recipes import bert_weights
from retrieval.recipes.on_mesh import OnMesh
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.trained_model import TRAINED, TrainedKind
from retrieval.runtime import artefacts, hub, model_folder
from retrieval.search import encoding, text_batches

_FEW = 32  # pairs that are scored as one batch


class Lengths(NamedTuple):
    """The tokens of a query with what stands around it alone, and of a row with its document."""

    query: int
    row: int


def pair_scorer(
    config: ConfigDict, model: CrossEncoder, sep_id: int, mesh: jax.sharding.Mesh
) -> Callable[[Any], Callable[[np.ndarray], np.ndarray]]:
    """From parameters to a function of rows [B, L] to scores [B, 1]; compiled once per shape. Args are `OnMesh`'s."""
    return OnMesh(config, model, sep_id, mesh).compiled(lambda model, pairs: model.scores(pairs)[:, None])


def query_beginnings(vocabulary: Vocabulary, texts: Sequence[str], lengths: Lengths) -> list[list[int]]:
    """`[CLS] query [SEP]` of each query; a RoBERTa has two separators."""
    template = vocabulary.template
    room = max(0, lengths.query - template.size())
    return [[*template.before, *ids[:room], *template.between] for ids in vocabulary.encode_batch(texts)]


def document_bodies(vocabulary: Vocabulary, items: Sequence[Candidate], lengths: Lengths) -> list[list[int]]:
    """The tokens of each document: of its title, then of its text."""
    titles = vocabulary.encode_batch([item.title for item in items])
    texts = vocabulary.encode_batch([item.text for item in items])
    (before, between, behind), pair = vocabulary.template, vocabulary.pair
    pairs = (pair(title, text, lengths.row)[len(before) :] for title, text in zip(titles, texts))
    return [[id for id in ids if id not in (*between, *behind)] for ids in pairs]


def joined(beginning: Sequence[int], body: Sequence[int], template: Template, lengths: Lengths) -> list[int]:
    """`[CLS] query [SEP] document [SEP]`, as `features.JoinedConverter` makes it: the document is cut."""
    room = max(0, lengths.row - len(beginning) - len(template.behind))
    return [*beginning, *body[:room], *template.behind]


class PairRows(Protocol):
    """How pairs become rows of token ids."""

    @property
    def vocabulary(self) -> Vocabulary:
        """What makes tokens of texts."""
        ...

    @property
    def length(self) -> int:
        """The tokens of a row at most."""
        ...

    def begin(self, queries: Sequence[str]) -> list[Any]:
        """What stands before the documents of each query."""
        ...

    def of(self, beginnings: Iterable[Any], documents: Sequence[Candidate]) -> list[list[int]]:
        """The row of each document, behind its beginning."""
        ...

    def with_room(self, room: int) -> "PairRows":
        """The same with so many more tokens of a query, and of a row."""
        ...


class JoinedRows(NamedTuple):
    """As `PairRows`: `[CLS] query [SEP] document [SEP]`."""

    vocabulary: Vocabulary
    lengths: Lengths

    @property
    def length(self) -> int:
        """As `PairRows.length`."""
        return self.lengths.row

    def begin(self, queries: Sequence[str]) -> list[list[int]]:
        """As `PairRows.begin`."""
        return query_beginnings(self.vocabulary, queries, self.lengths)

    def of(self, beginnings: Iterable[Sequence[int]], documents: Sequence[Candidate]) -> list[list[int]]:
        """As `PairRows.of`."""
        bodies = document_bodies(self.vocabulary, documents, self.lengths)
        template = self.vocabulary.template
        return [joined(beginning, body, template, self.lengths) for beginning, body in zip(beginnings, bodies)]

    def with_room(self, room: int) -> "JoinedRows":
        """As `PairRows.with_room`."""
        return self._replace(lengths=Lengths(*(length + room for length in self.lengths)))


class Reranker:
    """A trained cross-encoder on the devices of this host; as `PairScorer`. Threads may ask together."""

    def __init__(self, config: ConfigDict, model: CrossEncoder, rows: PairRows):
        """Args are the run's config, the model, and the rows that it reads, with its vocabulary."""
        self._model, self._rows, vocabulary = model, rows, rows.vocabulary
        mesh = local_mesh(config)
        self._devices, self._batch_tokens = mesh.size, config.encode.batch_tokens
        self._score = pair_scorer(config, model, vocabulary.sep_id, mesh)(parameters_of(model))

    def scores(self, queries: Sequence[str], documents: Sequence[Candidate]) -> np.ndarray:
        """As `PairScorer.scores`."""
        rows = self._rows.of(self._rows.begin(queries), documents)
        sizes = self._batch_tokens, self._rows.length, self._devices
        return encoding.encode_rows(rows, self._score, *sizes)[:, 0] if rows else np.zeros(0, np.float32)

    def scores_of(self, query: str, documents: Sequence[Candidate]) -> np.ndarray:
        """As `PairScorer.scores_of`."""
        return self.scores_of_rows(self.rows_of(query, documents))

    def rows_of(self, query: str, documents: Sequence[Candidate], room: int = 0) -> list[list[int]]:
        """As `PairScorer.rows_of`."""
        rows = self._rows.with_room(room) if room else self._rows
        return rows.of(rows.begin([query]) * len(documents), documents)

    def scores_of_rows(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """As `PairScorer.scores_of_rows`."""
        parts = [self._few(rows[start : start + _FEW])[:, 0] for start in range(0, len(rows), _FEW)]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """As `PairScorer.probabilities`: a score is a probability, its logarithm, or a logit."""
        if self._model.sigmoid:
            return scores
        return np.exp(scores) if self._model.classes == 2 else np.exp(-np.logaddexp(0, -scores))

    def compile(self, count: int) -> None:
        """As `PairScorer.compile`."""
        for length in text_batches.lengths_up_to(self._rows.length):
            self._few([[0] * length] * min(count, _FEW))

    def write(self, folder: Path) -> None:
        """As `PairScorer.write`."""
        vocabulary, types = self._rows.vocabulary, self._model.encoder.config.type_vocab_size
        if self._model.pooling == cross_encoder.LAST and vocabulary.pad_id in (-1, *vocabulary.template.behind):
            raise UserError(
                "stage 'export': transformers takes a token for padding that ends every text here, and would look for "
                "the last one before it; rerank with the work directory, or train with a vocabulary that has a token "
                "of padding"
            )
        cross_encoder.write_cross_encoder(folder, self._model, max(vocabulary.pad_id, 0))
        tokenizer_files.write_tokenizer(folder, vocabulary, length=self._rows.length, types=types)

    def score_all(
        self,
        folder: Path,
        shard_size: int,
        queries: Sequence[str],
        pairs: Iterable[tuple[int, Any]],
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
        texts = ((str(query), (query, document)) for query, document in pairs)
        sizes = {"batch_tokens": self._batch_tokens, "longest": self._rows.length, "multiple": self._devices}
        encoding.encode(folder, "pairs", texts, total, rows, self._score, shard_size=shard_size, **sizes)
        seconds = time.perf_counter() - began
        return encoding.load_of_all_hosts(folder, "pairs")[:, 0], seconds / scored if scored else None

    def _few(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        return encoding.encode_few(rows, self._score, self._rows.length, self._devices)


class _Rerankers(TrainedKind):
    """Work directories of rerankers, and folders of Hugging Face's, whoever made them."""

    def inputs(self, run: Run, value: str, field: str) -> Sequence[Path]:
        """As `TrainedKind.inputs`."""
        if folder := _published(value, field):
            return [
                *folder.files,
                *cross_encoder.settings(folder),
                *model_folder.module_files(folder.path),
                *vocabularies.files(vocabularies.find(folder.path)),
            ]
        return super().inputs(run, value, field)

    def check(self, run: Run, value: str, field: str) -> None:
        """As `TrainedKind.check`."""
        if folder := _published(value, field):
            _check_longest(folder, run.config.data, field)
            data, vocabulary = run.config.data, bert_weights.vocabulary_of(folder)
            if yes_no.is_judge(folder):
                yes_no.read(folder, vocabulary)
                JudgedRows(vocabulary, data.document_length).check(folder, field, data.query_length)
            else:
                _check_lengths(folder, vocabulary, data, field)
                cross_encoder.check_cross_encoder(folder)
        else:
            super().check(run, value, field)

    def open(self, run: Run, value: str, field: str) -> Reranker:
        """As `TrainedKind.open`."""
        self.check(run, value, field)
        if not (folder := _published(value, field)):
            config, vocabulary, model = self.load(run, value, field)
            lengths = Lengths(config.data.query_length, config.data.document_length)
            return Reranker(run.config, model, JoinedRows(vocabulary, lengths))
        vocabulary, sizes, data = bert_weights.vocabulary_of(folder), run.config.model, run.config.data
        of_tokens = {**folder.sizes, "vocab_size": len(vocabulary)}
        config = TransformerConfig(**of_tokens, dropout=0.0, dtype=sizes.dtype, unroll=sizes.unroll)
        bert_weights.log_spare_rows(folder, vocabulary)
        if yes_no.is_judge(folder):
            judge = yes_no.read(folder, vocabulary)
            rows = JudgedRows(vocabulary, data.document_length, judge.task)
            return Reranker(run.config, yes_no.load(folder, config, judge), rows)
        model = cross_encoder.load_cross_encoder(folder, config)
        return Reranker(run.config, model, JoinedRows(vocabulary, Lengths(data.query_length, data.document_length)))


RERANKERS = _Rerankers(
    "reranker", lambda recipe: recipe.reranks, ", or a folder that sentence_transformers.CrossEncoder loads"
)
TRAINED.register("reranker", RERANKERS)


def _published(value: str, field: str) -> EncoderFolder | None:
    """The folder of weights that a field names, be it on the hub; None for a work directory.

    Raises:
      UserError: there is neither.
    """
    folder = hub.local(value) if hub.is_name(value) else artefacts.local(value)
    if value and is_encoder(folder):
        return EncoderFolder.open(folder)
    if hub.is_name(value) or not folder.exists():
        raise UserError(
            f"{field}={value}: no cross-encoder of BERT's kind; name a work directory of a reranker, or a folder that "
            f"sentence_transformers.CrossEncoder loads{hub_hint(value)}"
        )
    return None


def _check_longest(folder: EncoderFolder, data: ConfigDict, field: str) -> None:
    if data.document_length > (longest := folder.sizes["max_length"]):
        raise UserError(
            f"{field}={folder.path}: a model of {longest} positions: set config.data.document_length={longest} at most"
        )


def _check_lengths(folder: EncoderFolder, vocabulary: Vocabulary, data: ConfigDict, field: str) -> None:
    lengths = Lengths(data.query_length, data.document_length)
    if lengths.row < lengths.query + len(vocabulary.template.between) + 1:
        raise UserError(
            f"{field}={folder.path}: config.data.document_length={lengths.row} is of query and document together, and "
            f"config.data.query_length={lengths.query} leaves no room for a document: set config.data.query_length="
            f"{max(1, lengths.row // 2)} at most"
        )
