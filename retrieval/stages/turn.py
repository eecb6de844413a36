"""The turn of a run in two phases (Liu et al. 2021, QuadrupletBERT, section 2.4).

The first refresh waits until training has converged, and what follows it begins anew from the best step.

Converged is a run whose validation score has not risen for config.mine.patience validations. Then the parameters go
back to those of the best step, the optimizer starts afresh, and the refresh makes its first version. The turn's step is
in `refreshed/turn.json`, and its checkpoint has what the second phase begins with. So a run that is cut off goes on as
if it had not been.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retrieval import files
from retrieval.config.fields import Field, declare, whole
from retrieval.errors import UserError
from retrieval.evaluation.training_metrics import read_training
from retrieval.runtime import hosts
from retrieval.training.loop import TrainState
from retrieval.training.pod_checkpoints import Checkpoints

_log = logging.getLogger(__name__)

_FILE = "turn.json"

declare(
    "mine",
    patience=Field(
        0,
        whole(0),
        "validations without a better one, then the first refresh comes, from the best step; 0: it comes by steps",
        was=0,
    ),
)


class Turn:
    """Notices that training has converged, and gives the state that the second phase begins with.

    Attributes:
      step: of the turn, or None where it has not come.
    """

    def __init__(
        self,
        folder: Path,
        resumed: int,
        patience: int,
        measure: str,
        checkpoints: Checkpoints,
        afresh: Callable[[TrainState, Any], TrainState],
    ):
        """Takes up the scores of the validations up to the step that the run goes on from.

        Args:
          folder: of versions; the turn's file lies there.
          resumed: that step; 0 at the beginning.
          patience: validations without a better score.
          measure: of a validation, which tells the score.
          afresh: a state and the parameters of another one to a state with these, at the same step, whose optimizer
            has done nothing yet.

        Raises:
          UserError: a line of the metrics is damaged.
        """
        self._path, self._patience, self._measure = folder / _FILE, patience, measure
        self._checkpoints, self._afresh = checkpoints, afresh
        turned_at = files.read_json(self._path)["step"] if self._path.exists() else None
        # A run that was killed between this file and the checkpoint of the turn comes there again.
        self.step = turned_at if turned_at is not None and turned_at <= resumed else None
        lines = read_training(folder.with_name("metrics") / "train.jsonl")
        name = f"validation/{measure}"
        self._scores = [record[name] for step, record in lines if name in record and step <= resumed]

    def __call__(self, step: int, state: TrainState, scores: Mapping[str, float]) -> TrainState:
        """To be called after a validation; gives another state where this is the turn.

        Raises:
          UserError: the checkpoint of the best step is damaged.
        """
        if self.step is not None:
            return state
        self._scores.append(scores[self._measure])
        since = len(self._scores) - 1 - self._scores.index(max(self._scores))
        if since < self._patience:
            return state
        best = self._checkpoints.best_step()
        if best is None:  # the first validation has none yet, and a patience is at least 1
            return state
        params = self._checkpoints.restore(state, step=best).params
        hosts.on_first(lambda: files.write_json(self._path, {"step": step, "best step": best}))
        self.step = step
        _log.info(
            "step %d: %s has not risen for %d validations; from here on with the parameters of step %d, a new "
            "optimizer, and what is mined with them",
            *(step, self._measure, since, best),
        )
        return self._afresh(state, params)


def check(patience: int, validate_every: int, refresh_lag: int) -> None:
    """Checks that a run in two phases notices the end of the first one.

    Raises:
      UserError: it is never validated, or a second process is to refresh.
    """
    if not validate_every:
        raise UserError(
            f"config.mine.patience={patience} counts validations, and config.loop.validate_every=0 makes none: set "
            "the steps from one to the next, or config.mine.patience=0"
        )
    if refresh_lag:
        raise UserError(
            f"config.mine.refresh_lag={refresh_lag}: with config.mine.patience the training mesh refreshes; set one "
            "of the two to 0"
        )
