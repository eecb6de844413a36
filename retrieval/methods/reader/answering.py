"""Answers of a trained reader in passages that were found."""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from retrieval.api.document_index import Hit
from retrieval.data.sets.beir import Candidate
from retrieval.methods.reader import answer_choice, readers
from retrieval.methods.reader.chosen_weight import MODEL, chosen_weight
from retrieval.methods.reader.readers import OwnReader
from retrieval.search.index_kind import INDEXES
from retrieval.search.side_by_side import HYBRID
from retrieval.stage_outputs import Run

_log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """A span of a passage that a reader takes for the answer.

    `text` is `hit.text[start:end]`. A higher score is better; scores of different questions do not compare.
    """

    text: str
    score: float
    hit: Hit
    start: int
    end: int


class Answerer:
    """The reader of a run, with what its config says of answers. Threads may ask together.

    Attributes:
      paragraphs: hits that are read for a question.
    """

    def __init__(self, run: Run):
        """Raises:
        UserError: the run has no reader, or one of another vocabulary.
        """
        fields = run.config.answer
        self.paragraphs, self._sums = fields.paragraphs, fields.sums
        reader = readers.open_reader(run, fields.model, MODEL)
        weight = reader.weight(fields.weight, fields.sums and not fields.validation)
        self._weight_of = functools.cache(functools.partial(_weight_of, run, weight))  # each is told once
        self._reader = OwnReader(reader, fields.spans)
        if reader.config.train.early:
            _log.info(
                "the reader trained its question tower too; passages are found with that of the embeddings: "
                "--stage=answer with --config.answer.systems=\"('tuned',)\" searches with the reader's"
            )

    def compile(self) -> None:
        """Compiles what reads short and long passages, any number of them: otherwise the first of every length wait."""
        self._reader.compile()

    def answers(self, question: str, hits: Sequence[Hit], k: int = 1, system: str = "") -> list[Answer]:
        """The best `k` answers in the first `paragraphs` hits, fewer where there are fewer spans.

        Args:
          system: whose hits these are, for the weight that validation chose for its scores; '': of no one.
        """
        hits = hits[: self.paragraphs]
        passages = [Candidate(each.id, each.title, each.text) for each in hits]
        spans = self._reader.spans(question, passages, [each.score for each in hits]) if hits else []
        ranked = answer_choice.ranked(spans, self._weight_of(system), self._sums)
        return [Answer(span.text, span.score, hits[span.rank], span.start, span.end) for span in ranked[:k]]


def _weight_of(run: Run, weight: float, system: str) -> float:
    """The weight of the reader's score beside the scores of a system: what validation chose, or the one given."""
    fields = run.config.answer
    if not fields.validation:
        return weight
    chosen = chosen_weight(run, INDEXES[system].system if system in INDEXES else system)
    if chosen is None:
        _log.warning(
            "answers: the set '%s' of config.answer.validation has chosen no weight for %s with these settings and "
            "this reader (--stage=answer with config.answer.systems does): the weight %s counts",
            *(fields.validation, f"the hits of '{system}'" if system else "passages that are given", weight),
        )
        return weight
    _log.info(
        "answers: the reader's score has the weight %s beside '%s', as '%s' chose", chosen, system, fields.validation
    )
    return chosen


def has_answerer(run: Run) -> bool:
    """Whether a run has a reader."""
    return readers.KIND.is_there(run, run.config.answer.model)


def fetch(run: Run) -> None:
    """Copies down the reader, where the config names one on a store."""
    readers.KIND.fetch(run, run.config.answer.model, MODEL)


def check(run: Run) -> None:
    """Checks the reader, where there is one.

    Raises:
      UserError: it is none, or has another vocabulary.
    """
    if has_answerer(run):
        readers.check(run, run.config.answer.model, MODEL)


def system_that_is_read(systems: Mapping[str, object]) -> str:
    """Of the lists of several systems that whose hits are read: of both kinds of index merged, else the first."""
    return HYBRID if HYBRID in systems else next(iter(systems))
