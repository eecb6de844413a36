"""A model that says the same of every text: its loss stands still or falls, and nobody looks at the scores."""

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from retrieval.common.errors import UserError

_log = logging.getLogger(__name__)

SHARE = 0.2  # of the run's steps, after the warm-up
LEAST = 5  # lines of the log: a run of a few steps has no time to learn


class Sign(NamedTuple):
    """What tells that a model has collapsed.

    Attributes:
      metrics: of a line of the log; the greatest of those that it has is looked at.
      least: the model has collapsed where that is smaller.
      what: is all alike then, in words.
      advice: what to do.
    """

    metrics: tuple[str, ...]
    least: float
    what: str
    advice: str


# The standard deviation of the scores of a query's candidates (`candidates.compared`). A model from scratch may begin
# with so little, and stay there for a while before it learns.
SPREAD = Sign(
    ("spread",),
    1e-3,
    "the scores of a query's candidates have been all alike",
    "the reranker learns nothing; try another config.train.learning_rate, or another start, config.train.init_from",
)
# The means of a loss of distances, such as `quadruplets.quadruplet`.
DISTANCES = Sign(
    ("distance_positive", "distance_simple", "distance_hard"),
    1e-3,
    "the distances between texts have all been near 0",
    "all texts have one embedding; try a lower config.train.learning_rate, a larger config.train.margin, or another "
    "start, config.train.init_from",
)


class Collapse:
    """Looks for a sign of collapse in every line of the log of training."""

    def __init__(
        self, sign: Sign, steps: int, warmup: int = 0, history: Iterable[tuple[int, Mapping[str, float]]] = ()
    ):
        """Makes what looks at a run.

        Args:
          steps: of the run.
          warmup: those of its warm-up.
          history: step and metrics of the lines that were written before the run was cut off.
        """
        self._sign, self._warmup, self._patience = sign, warmup, max(1, int(SHARE * steps))
        self._lines: list[int] = []  # the steps of the lines of a collapsed model, in a row
        for step, metrics in history:
            self._count(step, metrics)

    def look(self, step: int, metrics: Mapping[str, float]) -> None:
        """Looks at a line.

        Raises:
          UserError: the model has been collapsed for SHARE of the run, behind its warm-up, and in LEAST lines.
        """
        self._count(step, metrics)
        if self._lines[LEAST - 1 :] and step - max(self._lines[0], self._warmup) >= self._patience:
            raise UserError(f"step {step}: {self._sign.what} since step {self._lines[0]}: {self._sign.advice}")

    def _count(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [metrics[name] for name in self._sign.metrics if name in metrics]
        if not values:  # such as the line of a validation
            return
        if not max(values) < self._sign.least:
            self._lines = []
            return
        self._lines.append(step)
        if len(self._lines) == 1:
            _log.warning("step %d: %s (%.2g)", step, self._sign.what, max(values))
