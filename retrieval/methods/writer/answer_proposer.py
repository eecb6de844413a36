"""What proposes answers by a model: a reader that was trained without questions, on answers that people asked for.

Alberti et al. 2019 propose answers so, with a model of the span alone, p(answer | passage).
"""

from collections.abc import Sequence

from retrieval.data.sets.beir import Candidate
from retrieval.methods.writer.answer_maker import Span
from retrieval.recipes.trained_model import TRAINED
from retrieval.stage_outputs import Run

PROPOSER = "config.generate.proposer"
_SPANS = 20  # of a passage: many of them overlap


class AnswerProposer:
    """The spans that a reader takes for answers to some question."""

    def __init__(self, run: Run, value: str):
        """Args are those of `TrainedKind.open`.

        Raises:
          UserError: there is no reader, it was trained with questions, or it does not fit the run.
        """
        self._finder = TRAINED["proposer"].open(run, value, PROPOSER)

    def spans(self, passages: Sequence[Candidate]) -> list[list[Span]]:
        """The candidates of each passage, the most probable first; they may overlap."""
        found = self._finder.spans([""] * len(passages), passages, _SPANS)
        return [[Span(*each) for each in best] for best in found]
