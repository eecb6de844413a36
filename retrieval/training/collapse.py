"""A reranker that says the same of every candidate: its loss stands still, and nobody looks at the scores."""

import logging
from collections.abc import Callable

from retrieval.errors import UserError

_log = logging.getLogger(__name__)

# Standard deviation of the scores of a query's candidates. A model from scratch may begin with so little, and stay
# there for a while before it learns.
ALIKE = 1e-3
SHARE = 0.2  # of the run's steps, after the warm-up
LEAST = 5  # lines of the log: a run of a few steps has no time to learn


class Collapse:
    """Writes the metrics of training, and looks at 'spread' (`candidates.compared`) in every line."""

    def __init__(self, write: Callable[[int, dict[str, float]], None], steps: int, warmup: int = 0):
        """Args are what writes a line, the steps of the run, and those of its warm-up."""
        self._write, self._warmup = write, warmup
        self._patience = max(1, int(SHARE * steps))
        self._alike = 0  # lines in a row
        self._since: int | None = None  # the step of the first line of those in a row that are alike

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        """Writes a line.

        Raises:
          UserError: the scores have been all alike for SHARE of the run, behind its warm-up, and in LEAST lines.
        """
        self._write(step, metrics)
        if "spread" not in metrics:  # the line of a validation
            return
        if metrics["spread"] >= ALIKE:
            self._since, self._alike = None, 0
            return
        self._alike += 1
        if self._since is None:
            self._since = step
            spread = metrics["spread"]
            _log.warning("step %d: the scores of a query's candidates are all alike (spread %.2g)", step, spread)
        if self._alike >= LEAST and step - max(self._since, self._warmup) >= self._patience:
            raise UserError(
                f"step {step}: the scores of a query's candidates have been all alike since step {self._since}: the "
                "reranker learns nothing; try another config.train.learning_rate, or another start, "
                "config.train.init_from"
            )
