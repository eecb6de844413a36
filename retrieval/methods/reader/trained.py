"""Trained readers as other methods use them: what finds the answer to a question, and what proposes answers."""

import functools
from collections.abc import Sequence

from retrieval.data.sets.beir import Candidate
from retrieval.methods.reader import readers
from retrieval.methods.reader.readers import Reader, SpanFinder
from retrieval.recipes.trained_model import TRAINED, TrainedKind
from retrieval.stage_outputs import Run


class Finder:
    """As `retrieval.recipes.trained_model.SpanFinder`."""

    def __init__(self, reader: Reader, batch_tokens: int):
        self._finder, self._batch_tokens = functools.cache(functools.partial(SpanFinder, reader)), batch_tokens

    def spans(self, questions: Sequence[str], passages: Sequence[Candidate], count: int) -> list[list[tuple[int, int]]]:
        """As it."""
        found = self._finder(count).spans(questions, passages, self._batch_tokens)
        return [[(span.start, span.end) for span in best] for best in found]


class _Readers(TrainedKind):
    asked = True  # whether they were trained with questions

    def check(self, run: Run, value: str, field: str) -> None:
        """As `TrainedKind.check`."""
        readers.check(run, value, field, self.asked)

    def open(self, run: Run, value: str, field: str) -> Finder:
        """As `TrainedKind.open`."""
        return Finder(readers.open_reader(run, value, field, self.asked), run.config.encode.batch_tokens)


class _Proposers(_Readers):
    """Readers without questions: p(answer | passage), as Alberti et al. 2019 propose answers."""

    asked = False


TRAINED.register("reader", _Readers("reader", lambda recipe: recipe.reads))
TRAINED.register("proposer", _Proposers("reader", lambda recipe: recipe.reads))
