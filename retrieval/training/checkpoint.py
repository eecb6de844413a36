"""Checkpoints with Orbax: state and position in the data in one step folder, whole or not at all."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from retrieval.errors import UserError

_log = logging.getLogger(__name__)


class Resumable(Protocol):
    """A data iterator that can write down its position and go back to it; every host writes its own files."""

    def save(self, folder: Path) -> None:
        """Writes the position into an existing folder."""

    def restore(self, folder: Path) -> None:
        """Goes back to the position in `folder`."""


class _DataHandler(ocp.CheckpointHandler):
    """Lets a `Resumable` write its files into the step folder that Orbax makes and commits."""

    def save(self, directory: Path, args: "_DataArgs") -> None:
        args.data.save(directory)

    def restore(self, directory: Path, args: "_DataArgs") -> None:
        args.data.restore(directory)


@ocp.args.register_with_handler(_DataHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _DataArgs(ocp.args.CheckpointArgs):
    data: Resumable


class Checkpointer:
    """Saves in the background; keeps the newest `keep` steps and, by the metric named `best`, the best one."""

    def __init__(self, folder: Path, keep: int = 2, best: str = ""):
        policies = [LatestN(keep)]
        if best:
            policies.append(
                BestN(get_metric_fn=lambda scores: scores[best], n=1, keep_checkpoints_without_metrics=False)
            )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy(policies),
            best_fn=(lambda scores: scores[best]) if best else None,
            # A deleted step is renamed away first: a kill in the middle of a deletion leaves no half step in the list.
            todelete_subdir="trash",
            cleanup_tmp_directories=True,
        )
        self._folder = folder.absolute()
        self._best = best
        self._manager = ocp.CheckpointManager(self._folder, options=options, item_names=("state", "data"))

    def latest_step(self) -> int | None:
        """The newest finished step, or None."""
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The step with the highest score, the newest of several; the newest of all where none has one."""
        return (self._manager.best_step() if self._best else None) or self.latest_step()

    def save(self, step: int, state: Any, data: Resumable, scores: Mapping[str, float] | None = None) -> None:
        """Starts saving; the arrays may be donated as soon as it returns.

        Args:
          scores: what a validation at this step gave, by metric.
        """
        if self._manager.latest_step() != step:
            args = ocp.args.Composite(state=ocp.args.StandardSave(state), data=_DataArgs(data))
            self._manager.save(step, args=args, metrics=dict(scores) if scores else None)

    def restore(self, like: Any, data: Resumable | None = None, step: int | None = None) -> Any:
        """A state, the newest without `step`, with the shapes, types and shardings of `like`; also moves `data`.

        Raises:
          UserError: there is no checkpoint, or it is of another model.
        """
        step = self.latest_step() if step is None else step
        if step is None:
            raise UserError(f"{self._folder}: no checkpoint; run the train stage first")
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        items = {"state": ocp.args.StandardRestore(abstract)} | ({"data": _DataArgs(data)} if data else {})
        try:
            restored = self._manager.restore(step, args=ocp.args.Composite(**items))
        except (ValueError, KeyError) as error:
            raise UserError(f"{self._folder}/{step}: not a checkpoint of this model: {error}") from error
        _log.info("restored step %d from %s", step, self._folder)
        return restored["state"]

    def wait(self) -> None:
        """Returns when the last save is on the disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the last save."""
        self.wait()
        self._manager.close()
