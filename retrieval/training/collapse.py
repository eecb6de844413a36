"""A reranker that says the same of every candidate: its loss stands still, and nobody looks at the scores."""

import logging
from collections.abc import Callable

from retrieval.errors import UserError

_log = logging.getLogger(__name__)

# Standard deviation of the scores of a query's candidates. A head that starts at random gives them more.
ALIKE = 1e-3
LINES = 10


class Collapse:
    """Writes the metrics of training, and looks at 'spread' (`candidates.compared`) in every line."""

    def __init__(self, write: Callable[[int, dict[str, float]], None]):
        self._write = write
        self._alike = 0  # lines in a row

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        """Writes a line.

        Raises:
          UserError: the scores were all alike in LINES lines in a row.
        """
        self._write(step, metrics)
        if "spread" not in metrics:  # the line of a validation
            return
        self._alike = self._alike + 1 if metrics["spread"] < ALIKE else 0
        if self._alike == 1:
            _log.warning("step %d: the scores of a query's candidates are all alike (spread %.2g)", step, ALIKE)
        if self._alike >= LINES:
            raise UserError(
                f"step {step}: the scores of a query's candidates have been all alike in {LINES} lines of the log in a "
                "row: the reranker learns nothing; lower config.train.learning_rate, or raise config.train.warmup_ratio"
            )
