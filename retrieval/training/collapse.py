"""A model that says the same of every text: its loss stands still or falls, and nobody looks at the scores."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from retrieval.errors import UserError

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

    def value(self, line: Mapping[str, float]) -> float | None:
        """What is looked at; None for a line without it, such as that of a validation."""
        return max((line[name] for name in self.metrics if name in line), default=None)


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
    """Writes the metrics of training, and looks for a sign of collapse in every line."""

    def __init__(
        self,
        write: Callable[[int, dict[str, float]], None],
        sign: Sign,
        steps: int,
        warmup: int = 0,
        before: Iterable[tuple[int, Mapping[str, float]]] = (),
    ):
        """Makes what looks at a run.

        Args:
          write: writes a line.
          steps: of the run.
          warmup: those of its warm-up.
          before: step and metrics of the lines that were written before the run was cut off.
        """
        self._write, self._sign, self._warmup = write, sign, warmup
        self._patience = max(1, int(SHARE * steps))
        self._collapsed = 0  # lines in a row
        self._since: int | None = None  # the step of the first of them
        for step, metrics in before:
            self._look(step, metrics)

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        """Writes a line.

        Raises:
          UserError: the model has been collapsed for SHARE of the run, behind its warm-up, and in LEAST lines.
        """
        self._write(step, metrics)
        self._look(step, metrics)
        if self._since is None or self._sign.value(metrics) is None:
            return
        if self._collapsed >= LEAST and step - max(self._since, self._warmup) >= self._patience:
            raise UserError(f"step {step}: {self._sign.what} since step {self._since}: {self._sign.advice}")

    def _look(self, step: int, metrics: Mapping[str, float]) -> None:
        if (value := self._sign.value(metrics)) is None:
            return
        if not value < self._sign.least:
            self._since, self._collapsed = None, 0
            return
        self._collapsed += 1
        if self._since is None:
            self._since = step
            _log.warning("step %d: %s (%.2g)", step, self._sign.what, value)
