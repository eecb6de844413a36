"""The turn of a run in two phases (Liu et al. 2021, QuadrupletBERT, section 2.4).

The first refresh waits until training has converged, and what follows it begins anew from the best step.

Converged is a run whose validation score has not risen for config.mine.patience validations. Then the parameters go
back to those of the best step, the optimizer starts afresh, and the refresh makes its first version. The checkpoint of
the turn has what the second phase begins with, and the log of training has the scores that tell which step it was. So a
run that is cut off goes on as if it had not been.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from retrieval.errors import UserError
from retrieval.training.checkpoint import Checkpointer
from retrieval.training.loop import TrainState

_log = logging.getLogger(__name__)


class Turn:
    """Notices that training has converged, and gives the state that the second phase begins with.

    Attributes:
      step: of the turn, or None where it has not come.
    """

    def __init__(
        self,
        before: Iterable[tuple[int, Mapping[str, float]]],
        patience: int,
        measure: str,
        checkpoints: Checkpointer,
        afresh: Callable[[TrainState, Any], TrainState],
    ):
        """Takes up the scores of a run that goes on.

        Args:
          before: step and metrics of the lines that it has logged up to there.
          patience: validations without a better score.
          measure: of a validation, which tells the score.
          afresh: a state and the parameters of another one to a state with these, at the same step, whose optimizer
            has done nothing yet.
        """
        self._patience, self._measure = patience, measure
        self._checkpoints, self._afresh = checkpoints, afresh
        name = f"validation/{measure}"
        validated = [(step, metrics[name]) for step, metrics in before if step and name in metrics]
        self._scores = [score for _, score in validated]
        turns = (step for count, (step, _) in enumerate(validated, 1) if self._has_converged(self._scores[:count]))
        self.step: int | None = next(turns, None)

    def __call__(self, step: int, state: TrainState, scores: Mapping[str, float]) -> TrainState:
        """To be called after a validation; gives another state where this is the turn.

        Raises:
          UserError: the checkpoint of the best step is damaged.
        """
        if self.step is not None:
            return state
        self._scores.append(scores[self._measure])
        if not self._has_converged(self._scores):
            return state
        best = self._checkpoints.best_step()
        assert best is not None, "the validations before have left one"
        params = state.restored(self._checkpoints, step=best).params
        self.step = step
        _log.info(
            "step %d: %s has not risen for %d validations; from here on with the parameters of step %d, a new "
            "optimizer, and what is mined with them",
            *(step, self._measure, self._patience, best),
        )
        return self._afresh(state, params)

    def _has_converged(self, scores: Sequence[float]) -> bool:
        return len(scores) - 1 - scores.index(max(scores)) >= self._patience


def check(patience: int, validate_every: int) -> None:
    """Checks that a run in two phases notices the end of the first one."""
    if not validate_every:
        raise UserError(
            f"config.mine.patience={patience} counts validations, and config.loop.validate_every=0 makes none: set "
            "the steps from one to the next, or config.mine.patience=0"
        )
