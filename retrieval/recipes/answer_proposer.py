"""What proposes answers by a model: a reader that was trained without questions, on answers that people asked for.

Alberti et al. 2019 propose answers so, with a model of the span alone, p(answer | passage).
"""

from collections.abc import Sequence

from retrieval.data.answer_makers.answer_maker import Span
from retrieval.data.labelled.reader_rows import question_tokens, row_of
from retrieval.data.sets.beir import Candidate
from retrieval.recipes.readers import SpanFinder, open_reader, spans_of
from retrieval.search.encoding import encode_rows
from retrieval.stage_outputs import Run

PROPOSER = "config.generate.proposer"
_SPANS = 20  # of a passage: many of them overlap


class AnswerProposer:
    """The spans that a reader takes for answers to some question."""

    def __init__(self, run: Run, value: str):
        """Args are those of `open_reader`.

        Raises:
          UserError: there is no reader, it was trained with questions, or it does not fit the run.
        """
        self._reader = open_reader(run, value, PROPOSER, asked=False)
        self._find = SpanFinder(self._reader, _SPANS)
        self._batch_tokens = run.config.encode.batch_tokens

    def spans(self, passages: Sequence[Candidate]) -> list[list[Span]]:
        """The candidates of each passage, the most probable first; they may overlap."""
        vocabulary, lengths = self._reader.vocabulary, self._reader.lengths
        nothing = question_tokens(vocabulary, "", lengths)
        rows = [row_of(vocabulary, nothing, passage, lengths) for passage in passages]
        if not rows:
            return []
        found = encode_rows(
            [row.ids for row in rows], self._find, self._batch_tokens, lengths.row, self._find.mesh.size
        )
        return [
            [Span(each.start, each.end) for each in spans_of(values, row, passage.text, 0, 0.0, False)]
            for values, row, passage in zip(found, rows, passages)
        ]
