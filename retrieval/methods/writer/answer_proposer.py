"""What proposes answers by a model: a reader that was trained without questions, on answers that people asked for.

Alberti et al. 2019 propose answers so, with a model of the span alone, p(answer | passage).
"""

from collections.abc import Sequence

from retrieval.data.sets.beir import Candidate
from retrieval.methods.reader.readers import SpanFinder, open_reader
from retrieval.methods.writer.answer_maker import Span
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
        self._find = SpanFinder(open_reader(run, value, PROPOSER, asked=False), _SPANS)
        self._batch_tokens = run.config.encode.batch_tokens

    def spans(self, passages: Sequence[Candidate]) -> list[list[Span]]:
        """The candidates of each passage, the most probable first; they may overlap."""
        found = self._find.spans([""] * len(passages), passages, self._batch_tokens)
        return [[Span(each.start, each.end) for each in best] for best in found]
