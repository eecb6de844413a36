"""Trained readers: what finds spans in passages, which of them is the answer, and answers to questions of one's own."""

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.api.answering import MODEL, Answer
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
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights.trained_model import TRAINED, TrainedKind
from retrieval.search.encoding import encode_rows
from retrieval.search.index_kind import INDEXES
from retrieval.search.text_batches import lengths_up_to

_log = logging.getLogger(__name__)

# The weights of the reader that ProQA chooses from.
WEIGHTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0)
# Of each set and system in what the stage `answer` tells: the weight, and how many questions chose it, 0 for none.
WEIGHT, VALIDATION = "weight", "validation"
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


class _Readers(TrainedKind):
    def read(self, run: Run, value: str, field: str) -> "SpanFinder":
        """The reader itself. Errors are those of `open`."""
        self.check(run, value, field)
        return SpanFinder(*self.load(run, value, field))

    def open(self, run: Run, value: str, field: str) -> "OpenReader":
        """As `TrainedKind.open`."""
        return OpenReader(run, self.read(run, value, field))


READERS = _Readers("reader", lambda recipe: isinstance(recipe, ReaderRecipe))
TRAINED.register("reader", READERS)


class SpanFinder:
    """Rows of a question and a paragraph to the best spans of each, on this host's devices; compiled once per shape.

    Threads may call together.

    Attributes:
      config: that the reader was trained with.
      selects: whether it scores paragraphs itself.
      own_weight: of its score beside that of the paragraph, as its loss has it.
    """

    def __init__(self, config: ConfigDict, vocabulary: Vocabulary, model: SpanReader):
        recipe = recipe_of(config)
        assert isinstance(recipe, ReaderRecipe), "`check` has looked at it"
        self.config, self.vocabulary, self.model = config, vocabulary, model
        self.rows = task.Rows(vocabulary, config.data.query_length, config.data.document_length)
        self.selects, self.mesh = hasattr(model, "select"), local_mesh(config)
        self.own_weight = recipe.reader_loss.answer_weight
        inference = Inference(config, model, vocabulary.sep_id, self.mesh)
        find = inference.compiled(lambda model, pairs, inside: model.best(pairs, inside, ANSWER_TOKENS, _KEPT))
        self._find = find(parameters_of(model))

    def __call__(self, ids_BL: np.ndarray) -> np.ndarray:
        """Padded rows of ids to what `SpanReader.best` says of each, float32 [B, 1 + 3 * count]."""
        return self._find(ids_BL, task.inside_paragraph(ids_BL, self.vocabulary.sep_id))

    def compile(self) -> None:
        """Compiles what reads rows of every length; how many are read at once follows from that."""
        row = self.rows.row
        for length in lengths_up_to(row):
            encode_rows([[self.vocabulary.cls_id] * length], self, row, row, self.mesh.size)

    def spans(
        self,
        questions: Sequence[str],
        passages: Sequence[Candidate],
        batch_tokens: int = 0,
        scores: Iterable[float] = itertools.repeat(0.0),
    ) -> list[list[Span]]:
        """The spans of each question in the passage beside it, best first; a passage's rank is its place.

        Args:
          batch_tokens: as `encoding.encode` has them; 0: those of one row.
          scores: of the passages, by what has found them.
        """
        beginnings, longest = {text: self.rows.begin(text) for text in set(questions)}, self.rows.row
        rows = [self.rows.of(beginnings[text], passage) for text, passage in zip(questions, passages)]
        values = encode_rows([row.ids for row in rows], self, batch_tokens or longest, longest, self.mesh.size)
        return [
            self.spans_of(of_row, row, passage.text, rank, score)
            for rank, (of_row, row, passage, score) in enumerate(zip(values, rows, passages, scores))
        ]

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


def ranked(spans: Sequence[Span], weight: float) -> list[Span]:
    """The spans by `weight` * reader + (1 - `weight`) * retriever, best first (Xiong et al. 2020, section 3.4).

    Of equal ones the one with the higher score of the reader comes first: with a weight of 0 the best of its paragraph.
    """
    scored = [span._replace(score=weight * span.reader + (1 - weight) * span.retriever) for span in spans]
    return sorted(scored, key=lambda span: (-span.score, -span.reader))


def best_weight(questions: Sequence[Sequence[Span]], value: Callable[[int, str], float]) -> tuple[float, float]:
    """The weight in WEIGHTS whose answers are best on some questions, and their mean value; of equal ones the largest.

    Args:
      questions: the spans of each.
      value: of a question's number and an answer, which is '' where there is none.
    """

    def mean(weight: float) -> float:
        return float(np.mean([value(n, text_of(ranked(spans, weight))) for n, spans in enumerate(questions)]))

    return max(((weight, mean(weight)) for weight in WEIGHTS), key=lambda pair: pair[::-1])


def text_of(spans: Sequence[Span]) -> str:
    """The text of the first span; '' where there is none."""
    return spans[0].text if spans else ""


class OpenReader:
    """As `retrieval.api.answering.Answerer`."""

    def __init__(self, run: Run, finder: SpanFinder):
        """Args are the run whose `config.answer` and `config.encode` count, and its reader."""
        self._run, self._finder, self.paragraphs = run, finder, run.config.answer.paragraphs
        self._weight_of = functools.cache(functools.partial(_weight_of, run, finder))  # each is told once

    def compile(self) -> None:
        """As `Answerer.compile`."""
        self._finder.compile()

    def answers(self, question: str, hits: Sequence[Hit], k: int = 1, system: str = "") -> list[Answer]:
        """As `Answerer.answers`."""
        hits = hits[: self.paragraphs]
        passages = [Candidate(each.id, each.title, each.text) for each in hits]
        spans = self._finder.spans([question] * len(hits), passages, scores=[each.score for each in hits])
        best = ranked(list(itertools.chain.from_iterable(spans)), self._weight_of(system))
        return [Answer(span.text, span.score, hits[span.rank], span.start, span.end) for span in best[:k]]


def weight_of(run: Run, finder: SpanFinder) -> float:
    """The weight that `config.answer.weight` gives to the reader's score, or below 0 its own."""
    weight = run.config.answer.weight
    return weight if weight >= 0 else finder.own_weight


def _weight_of(run: Run, finder: SpanFinder, system: str) -> float:
    """The weight of the reader's score beside the scores of a system: what validation chose, or the one given."""
    fields, owner, weight = run.config.answer, run.owner("answer"), weight_of(run, finder)
    if not fields.validation:
        return weight
    system = INDEXES[system].system if system in INDEXES else system
    folders = {READERS.trainer(each, each.config.answer.model, MODEL).folder for each in (run, owner)}
    is_same = len(folders) == 1 and owner.config.answer.validation == fields.validation
    if is_same and records.is_done(owner, "answer") and not records.changed_fields(owner, "answer"):
        summary = records.details(owner, "answer").get(key(fields.validation, system), {})
        if summary.get(VALIDATION):
            return summary[WEIGHT]
    _log.warning(
        "answers: the set '%s' of config.answer.validation has chosen no weight for %s with these settings and this "
        "reader (--stage=answer with config.answer.systems does): the weight %s counts",
        *(fields.validation, f"the hits of '{system}'" if system else "passages that are given", weight),
    )
    return weight


def key(name: str, system: str) -> str:
    """The key of a set and a system, as tables name it, in what the stage `answer` tells."""
    return f"{name}, {system}"
