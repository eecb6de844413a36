"""Trained readers: this run's, its base's or another work directory's, as what finds spans in rows."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.methods.reader.answer_choice import Span
from retrieval.methods.reader.model import SpanReader
from retrieval.methods.reader.reader_rows import Row, RowLengths, inside_paragraph, question_tokens, row_of
from retrieval.recipes.on_mesh import OnMesh
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.recipe import recipe_of
from retrieval.recipes.trained_model import TrainedKind
from retrieval.search.encoding import encode_rows, lengths_up_to
from retrieval.stage_outputs import Run

KIND = TrainedKind("reader", lambda recipe: recipe.reads)
_NONE = -1e29  # spans with a lower score are none


class Reader(NamedTuple):
    """A trained reader.

    Attributes:
      config: that it was trained with.
      selects: whether it scores paragraphs itself.
      own_weight: of its score beside that of the paragraph, as its loss has it.
    """

    config: ConfigDict
    model: SpanReader
    vocabulary: Vocabulary
    lengths: RowLengths
    selects: bool
    own_weight: float

    def weight(self, given: float, sums: bool) -> float:
        """The weight that `config.answer.weight` gives, or below 0 its own.

        Args:
          sums: whether probabilities of spans are added up (`config.answer.sums`).

        Raises:
          UserError: there is nothing to add up: a weight of 0 leaves the spans' own scores out.
        """
        weight = given if given >= 0 else self.own_weight
        if sums and not weight:
            raise UserError(
                "config.answer.sums=True adds up what a weight of 0 of the reader's score leaves out: set False, or "
                "config.answer.weight to more"
            )
        return weight


def check(run: Run, value: str, field: str, asked: bool = True) -> None:
    """Checks that there is a reader, with a vocabulary that is its own.

    Args:
      asked: whether it is one of questions, or one that was trained without them.

    Raises:
      UserError: there is none.
    """
    trainer = KIND.check(run, value, field)
    if trainer.holder("spans").config.spans.asked != asked:
        raise UserError(
            f"{field}: {trainer.place} trains a reader {'without' if asked else 'with'} questions: name one of "
            f"config.spans.asked={asked}"
        )


def open_reader(run: Run, value: str, field: str, asked: bool = True) -> Reader:
    """The reader that a field names, as `check` has it.

    Raises:
      UserError: as `check`, or its parameters cannot be read.
    """
    check(run, value, field, asked)
    config, vocabulary, model = KIND.load(run, value, field)
    assert isinstance(model, SpanReader), "`check` has looked at the recipe"
    lengths, recipe = RowLengths(config.data.query_length, config.data.document_length), recipe_of(config)
    assert recipe.loss, "a reader has no loss of its own"
    weight = recipe.loss.answer_weight(recipe.loss_options())
    return Reader(config, model, vocabulary, lengths, hasattr(model, "select"), weight)


class SpanFinder:
    """Rows of a question and a paragraph to the best spans of each, on this host's devices; compiled once per shape."""

    def __init__(self, reader: Reader, count: int):
        """Args are the reader, and how many spans of a row are kept."""
        self.mesh, self._sep_id, self._reader = local_mesh(reader.config), reader.vocabulary.sep_id, reader
        widths = reader.config.model.answer_tokens
        on_mesh = OnMesh(reader.config, reader.model, self._sep_id, self.mesh)
        find = on_mesh.compiled(lambda model, pairs, inside: model.best(pairs, inside, widths, count))
        self._find = find(parameters_of(reader.model))

    def __call__(self, ids_BL: np.ndarray) -> np.ndarray:
        """Padded rows of ids to what `SpanReader.best` says of each, float32 [B, 1 + 3 * count]."""
        return self._find(ids_BL, inside_paragraph(ids_BL, self._sep_id))

    def found(self, rows: Sequence[Sequence[int]], batch_tokens: int) -> np.ndarray:
        """What is said of rows, float32 [N, 1 + 3 * count]; `batch_tokens` as `encoding.encode` has them."""
        return encode_rows(rows, self, batch_tokens, self._reader.lengths.row, self.mesh.size)

    def spans(
        self,
        questions: Sequence[str],
        passages: Sequence[Candidate],
        batch_tokens: int,
        scores: Iterable[float] = itertools.repeat(0.0),
    ) -> list[list[Span]]:
        """The spans of each question in the passage beside it, best first; a passage's rank is its place.

        Args:
          batch_tokens: as `encoding.encode` has them.
          scores: of the passages, by what has found them.
        """
        vocabulary, lengths, selects = self._reader.vocabulary, self._reader.lengths, self._reader.selects
        asked = {text: question_tokens(vocabulary, text, lengths) for text in set(questions)}
        rows = [row_of(vocabulary, asked[text], passage, lengths) for text, passage in zip(questions, passages)]
        values = self.found([row.ids for row in rows], batch_tokens)
        return [
            spans_of(found, row, passage.text, rank, score, selects)
            for rank, (found, row, passage, score) in enumerate(zip(values, rows, passages, scores))
        ]


def spans_of(found: np.ndarray, row: Row, text: str, rank: int, retriever: float, selects: bool) -> list[Span]:
    """The spans of a paragraph as slices of its text, best first.

    Args:
      found: what `SpanFinder` says of its row.
      rank: of the paragraph, from 0 on.
      retriever: its score; where the reader selects, its own takes the place of that.
    """
    select, *values = found.tolist()
    count = len(values) // 3
    spans = []
    for score, first, last in zip(values[:count], values[count : 2 * count], values[2 * count :]):
        if score > _NONE:
            start, end = row.characters_of(int(first), int(last))
            spans.append(Span(text[start:end], rank, start, end, score, select if selects else retriever))
    return spans


class OwnReader:
    """Answers to questions of one's own, one at a time."""

    def __init__(self, reader: Reader, spans: int):
        """Args are the reader, and how many spans of a passage are kept."""
        self._lengths, self._cls_id = reader.lengths, reader.vocabulary.cls_id
        self._find = SpanFinder(reader, spans)

    def compile(self) -> None:
        """Compiles what reads rows of every length; how many are read at once follows from that."""
        self._find.found([[self._cls_id] * each for each in lengths_up_to(self._lengths.row)], self._lengths.row)

    def spans(self, question: str, passages: Sequence[Candidate], scores: Sequence[float]) -> list[Span]:
        """The spans of passages, which a retriever gave these scores; those of each passage best first."""
        found = self._find.spans([question] * len(passages), passages, self._lengths.row, scores)
        return list(itertools.chain.from_iterable(found))
