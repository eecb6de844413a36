"""Trained readers: what finds spans in passages, which of them is the answer, and answers to questions of one's own."""

import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.api.answering import Answer
from retrieval.api.document_index import Hit
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.reader import task
from retrieval.methods.reader.model_and_loss import ANSWER_TOKENS, SpanReader
from retrieval.methods.reader.recipe import ReaderRecipe
from retrieval.methods.reader.task import Row
from retrieval.recipes.inference import Inference
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.recipes.recipe import recipe_of
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights.trained_model import TRAINED, TrainedKind
from retrieval.search.encoding import encode_rows
from retrieval.search.text_batches import lengths_up_to

_log = logging.getLogger(__name__)

_KEPT = 20  # spans of a passage, more than anybody asks for
_NO_SPAN = -1e29  # spans with a lower score are none


class Span(NamedTuple):
    """A span of a paragraph.

    Attributes:
      text: a slice of the paragraph's text, from character `start` on to before `end`.
      rank: of the paragraph among those that were read, from 0 on.
      reader: the score of the span, such as the sum of those of its ends.
      retriever: the score of its paragraph; where the reader selects paragraphs, its own.
      score: what it is ranked by.
    """

    text: str
    rank: int
    start: int
    end: int
    reader: float
    retriever: float
    score: float = 0.0


class SpanFinder:
    """Rows of a question and a paragraph to the best spans of each, on this host's devices; compiled once per shape.

    Threads may call together.

    Attributes:
      config: that the reader was trained with.
      selects: whether it scores paragraphs itself.
    """

    def __init__(self, config: ConfigDict, vocabulary: Vocabulary, model: SpanReader):
        self.config, self.vocabulary, self.model = config, vocabulary, model
        self.rows = task.Rows(vocabulary, config.data.query_length, config.data.document_length)
        self.selects, self.mesh = hasattr(model, "select"), local_mesh(config)
        inference = Inference(config, model, vocabulary.sep_id, self.mesh)
        find = inference.compiled(lambda model, pairs, inside: model.best(pairs, inside, ANSWER_TOKENS, _KEPT))
        self._find = find(parameters_of(model))

    def __call__(self, ids_BL: np.ndarray) -> np.ndarray:
        """Padded rows of ids to what `SpanReader.best` says of each, float32 [B, 1 + 3 * count]."""
        return self._find(ids_BL, task.inside_paragraph(ids_BL, self.vocabulary.sep_id))

    def few(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """The same of a few rows of any length."""
        return encode_rows(rows, self, self.rows.row, self.rows.row, self.mesh.size)

    def spans_of(self, values: np.ndarray, row: Row, text: str, rank: int, retriever: float) -> list[Span]:
        """The spans of a paragraph as slices of its text, best first.

        Args:
          values: what a call says of its row.
          rank, retriever: of the paragraph, as `Span` has them.
        """
        paragraph, spans = float(values[0]) if self.selects else retriever, []
        for score, first, last in values[1:].reshape(3, -1).T.tolist():
            if score > _NO_SPAN:
                start, end = row.characters_of(int(first), int(last))
                spans.append(Span(text[start:end], rank, start, end, score, paragraph))
        return spans

    def weight(self, configured: float) -> float:
        """The weight of the reader's score: `config.answer.weight`, or below 0 that of the loss it was trained with."""
        recipe = recipe_of(self.config)
        assert isinstance(recipe, ReaderRecipe), "`check` has looked at it"
        return configured if configured >= 0 else recipe.reader_loss.answer_weight


def ranked(spans: Sequence[Span], weight: float) -> list[Span]:
    """The spans by `weight` * reader + (1 - `weight`) * retriever, best first (Xiong et al. 2020, section 3.4).

    Of equal ones the one with the higher score of the reader comes first: with a weight of 0 the best of its paragraph.
    """
    scored = [span._replace(score=weight * span.reader + (1 - weight) * span.retriever) for span in spans]
    return sorted(scored, key=lambda span: (-span.score, -span.reader))


class OpenReader:
    """As `retrieval.api.answering.Answerer`."""

    def __init__(self, run: Run, finder: SpanFinder):
        """Args are the run whose `config.answer` counts, and its reader."""
        fields = run.config.answer
        self._finder, self.paragraphs, self._weight = finder, fields.paragraphs, finder.weight(fields.weight)
        if fields.validation:
            message = "answers: the weight %s counts; config.answer.weight takes the one that the stage answer chose"
            _log.warning(message, self._weight)

    def compile(self) -> Iterator[None]:
        """As `Answerer.compile`; how many rows are read at once follows from their length."""
        for length in lengths_up_to(self._finder.rows.row):
            self._finder.few([[self._finder.vocabulary.cls_id] * length])
            yield

    def answers(self, question: str, hits: Sequence[Hit], k: int = 1) -> list[Answer]:
        """As `Answerer.answers`."""
        hits, rows = hits[: self.paragraphs], self._finder.rows
        beginning = rows.begin(question)
        laid = [rows.of(beginning, Candidate(hit.id, hit.title, hit.text)) for hit in hits]
        values = self._finder.few([row.ids for row in laid])
        spans = (
            self._finder.spans_of(of_row, row, hit.text, rank, hit.score)
            for rank, (of_row, row, hit) in enumerate(zip(values, laid, hits))
        )
        best = ranked(list(itertools.chain.from_iterable(spans)), self._weight)
        return [Answer(span.text, span.score, hits[span.rank], span.start, span.end) for span in best[:k]]


class _Readers(TrainedKind):
    def read(self, run: Run, value: str, field: str) -> SpanFinder:
        """The reader itself. Errors are those of `open`."""
        self.check(run, value, field)
        return SpanFinder(*self.load(run, value, field))

    def open(self, run: Run, value: str, field: str) -> OpenReader:
        """As `TrainedKind.open`."""
        return OpenReader(run, self.read(run, value, field))


READERS = _Readers("reader", lambda recipe: isinstance(recipe, ReaderRecipe))
TRAINED.register("reader", READERS)
