"""Answers to questions of one's own: what the trunk takes of the kind of model 'reader'."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from retrieval.api.document_index import Hit
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights.trained_model import TRAINED
from retrieval.search.side_by_side import HYBRID

_READER, MODEL = "reader", "config.answer.model"


class Answer(NamedTuple):
    """A span of a passage that a model takes for the answer.

    `text` is `hit.text[start:end]`. A higher score is better; scores of different questions do not compare.
    """

    text: str
    score: float
    hit: Hit
    start: int
    end: int


class Answerer(Protocol):
    """What the kind 'reader' opens, with what `config.answer` says of answers. Threads may ask together.

    Attributes:
      paragraphs: hits that are read for a question.
    """

    paragraphs: int

    def compile(self) -> Iterator[None]:
        """Compiles what reads passages, of one length at each turn: otherwise the first of every length wait."""
        ...

    def answers(self, question: str, hits: Sequence[Hit], k: int = 1) -> list[Answer]:
        """The best `k` answers in the first `paragraphs` hits, fewer where there are fewer spans."""
        ...


def open_answerer(run: Run) -> Answerer | None:
    """The reader of a run; None where there is none.

    Raises:
      UserError: it is of another vocabulary, or cannot be read.
    """
    kind, model = TRAINED[_READER], run.config.answer.model
    return kind.open(run, model, MODEL) if kind.is_there(run, model) else None


def fetch(run: Run) -> None:
    """Copies down the reader, where the config names one on a store."""
    TRAINED[_READER].fetch(run, run.config.answer.model, MODEL)


def check(run: Run) -> None:
    """Checks the reader, where there is one."""
    kind, model = TRAINED[_READER], run.config.answer.model
    if kind.is_there(run, model):
        kind.check(run, model, MODEL)


def system_that_is_read(systems: Mapping[str, object]) -> str:
    """Of the lists of several systems that whose hits are read: of both kinds of index merged, else the first."""
    return HYBRID if HYBRID in systems else next(iter(systems))
