"""Checkpoints with Orbax: state and position in the data in one step folder, whole or not at all.

The folder is one of a disk, or of a store; every host writes its part of the arrays there. A step has a manifest,
written before Orbax says that the step is whole: on a disk the SHA-256 of each file, on a store what that says of each
object. So every step that is there can be verified, and a run goes on from the newest good one.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint._src.path import atomicity
from orbax.checkpoint._src.serialization import tensorstore_utils
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, CustomSteps, LatestN, PreservationPolicy
from orbax.checkpoint.options import MultiprocessingOptions

from retrieval.common import files
from retrieval.common.errors import UserError, first_line
from retrieval.common.runtime import hosts, store
from retrieval.common.runtime.store import Store

_log = logging.getLogger(__name__)

_TRASH = "trash"

# Orbax's name for the object that it writes when a step is whole, and what it writes around that.
_COMMITTED, _LATE = atomicity.COMMIT_SUCCESS_FILE, ("_CHECKPOINT_METADATA", atomicity.COMMIT_SUCCESS_FILE)

_SHA256 = re.compile(r"[0-9a-f]{64}")

# What Orbax raises over files that are not what they should be; what collectives raise is not among it.
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError, FileNotFoundError)


class Resumable(Protocol):
    """A data iterator that can write down its position and go back to it; every host writes its own files."""

    def save(self, folder: Path) -> None:
        """Writes the position into an existing folder."""

    def restore(self, folder: Path) -> None:
        """Goes back to the position in `folder`."""


class _DataHandler(ocp.CheckpointHandler):
    """Lets a `Resumable` write its files into the step folder that Orbax makes and commits."""

    def save(self, directory: Any, args: "_DataArgs") -> None:
        if not is_remote(directory):
            return args.data.save(directory)
        with tempfile.TemporaryDirectory() as folder:
            args.data.save(Path(folder))
            for path in Path(folder).iterdir():
                (directory / path.name).write_bytes(path.read_bytes())

    def restore(self, directory: Any, args: "_DataArgs") -> None:
        if not is_remote(directory):
            args.data.restore(directory)
            return
        with tempfile.TemporaryDirectory() as folder:
            for path in directory.iterdir():
                (Path(folder) / path.name).write_bytes(path.read_bytes())
            args.data.restore(Path(folder))


@ocp.args.register_with_handler(_DataHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _DataArgs(ocp.args.CheckpointArgs):
    data: Resumable


def is_remote(folder: Any) -> bool:
    """Whether this is a folder of a store, and none of the disk."""
    return store.is_url(str(folder))


def steps_in(folder: Any) -> list[int]:
    """The finished steps of a folder of checkpoints, in their order."""
    return sorted(int(path.parent.name) for path in folder.glob(f"*/{_COMMITTED}") if path.parent.name.isdecimal())


def verify(folder: Any, remedy: str) -> None:
    """Compares a step with its manifest."""
    if not is_remote(folder):
        files.verify_manifest(folder, remedy)
        return
    steps = Store(str(folder))
    try:
        sums = json.loads(steps.read(files.MANIFEST) or b"")
    except ValueError as error:
        raise UserError(f"{folder}/{files.MANIFEST}: missing or damaged; {remedy}") from error
    there = steps.sums()
    for name, sum in sums.items():
        if _SHA256.fullmatch(sum):  # of a run on a disk that was copied to a store
            there[name] = hashlib.sha256(steps.read(name) or b"").hexdigest()
        if there.get(name) != sum:
            raise UserError(f"{folder}/{name}: damaged or missing, it is not what was written; {remedy}")


def drop_damaged(folder: Any) -> None:
    """Moves steps whose files are not what was written to `damaged` beside `folder`, down to the newest good one.

    On a store they are deleted. Every host of a pod calls it, before it makes a `Checkpointer`. The log names them.

    Raises:
      UserError: there are steps, and none is good.
    """
    hosts.tell_all(lambda: _drop_damaged(folder))


def _drop_damaged(folder: Any) -> None:
    damaged, where = folder.with_name("damaged"), "deleted" if is_remote(folder) else "moved to damaged/"
    steps = steps_in(folder)[::-1]
    for number, step in enumerate(steps):
        try:
            verify(folder / str(step), "of no use")
        except UserError as error:
            _log.warning("checkpoint %d is %s: %s", step, where, error)
            if is_remote(folder):
                (folder / str(step)).rmtree()
            else:
                files.move_into(damaged, folder / str(step))
        else:
            if number:
                _log.warning("going on from checkpoint %d, the newest good one", step)
            return
    if steps:
        raise UserError(f"{folder}: no checkpoint was good, and all are {where}; the same command starts afresh")


def _absolute(folder: Any) -> Any:
    """The folder as Orbax takes it, which knows of stores from now on.

    Orbax 0.12 writes arrays to gs:// alone of what TensorStore can write to.
    """
    if not is_remote(folder):
        return folder.absolute()
    orbax: Any = tensorstore_utils
    orbax._use_gcs_driver = store.is_url
    orbax._normalize_path = lambda path: re.sub(r"^(\w+):/+", r"\1://", os.path.normpath(path))
    orbax.gcs_utils.get_kvstore_for_gcs = lambda path: store.array_store(path)
    return folder


class Checkpointer:
    """Saves in the background; keeps the newest `keep` steps and, by the metric named `best`, the best one."""

    def __init__(
        self,
        folder: Any,
        keep: int = 2,
        best: str = "",
        *,
        named: Collection[int] = (),
        before: Callable[[], None] = lambda: None,
        alone: bool = False,
    ):
        """Keeps also the `named` steps.

        Args:
          folder: a `Path`, or an `epath.Path` of a store.
          before: is called in the first host before a step is saved, for what the step is of no use without.
          alone: this process reads by itself, whatever others do.
        """
        policies: list[PreservationPolicy] = [LatestN(keep), CustomSteps(tuple(named))]
        score: Any = (lambda scores: scores[best]) if best else None
        if best:
            policies.append(BestN(get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False))
        process, alone_options = jax.process_index(), {}
        if alone:  # waits for no other process
            alone_options = {"active_processes": {process}, "barrier_sync_key_prefix": f"process-{process}"}
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy(policies),
            best_fn=score,
            # Steps are renamed away, and `_seal` deletes them later: a kill leaves no half step in the list.
            todelete_subdir=None if is_remote(folder) else _TRASH,
            cleanup_tmp_directories=not alone,
            temporary_path_class=atomicity.CommitFileTemporaryPath if is_remote(folder) else None,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
            multiprocessing_options=MultiprocessingOptions(process if alone else 0, **alone_options),
            create=not alone,
        )
        self.folder = _absolute(folder)
        self._best, self._before = best, before
        self._saving: int | None = None
        self._handle: int | None = None
        try:
            self._manager = ocp.CheckpointManager(self.folder, options=options, item_names=("state", "data"))
        except _UNREADABLE as error:
            raise UserError(f"{self.folder}: a checkpoint is damaged, delete it and train again: {error}") from error

    def latest_step(self) -> int | None:
        """The newest finished step, or None."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """Every finished step that is there; one that a save under way will delete is, until that is whole."""
        return steps_in(self.folder)

    def best_step(self) -> int | None:
        """The step with the highest score, the newest of several; the newest of all where none has one."""
        best = self._manager.best_step() if self._best else None
        return self.latest_step() if best is None else best

    def save(self, step: int, state: Any, data: Resumable, scores: Mapping[str, float] | None = None) -> None:
        """Starts saving; the arrays may be donated as soon as it returns.

        Args:
          scores: what a validation at this step gave, by metric.

        Raises:
          UserError: this step or one before it cannot be written.
        """
        if self._manager.latest_step() != step:
            self.wait()  # Orbax would, and the thread that saves looks at what comes
            if hosts.is_first():
                self._before()
            self._saving = step
            args = ocp.args.Composite(state=ocp.args.StandardSave(state), data=_DataArgs(data))
            with self._telling_failures():
                self._manager.save(step, args=args, metrics=dict(scores) if scores else None)

    def check(self) -> None:
        """Raises the `UserError` of a save that has failed in the background, or of a folder that has gone."""
        with self._telling_failures():
            self._manager.check_for_errors()
            if not self._manager.is_saving_in_progress():
                # The thread of a save that has ended may have taken its error, and tells who joins it.
                self._manager.wait_until_finished()
            if hosts.is_first() and not is_remote(self.folder):
                self._check_folder()

    def restore(self, like: Any, data: Resumable | None = None, step: int | None = None) -> Any:
        """A state, the newest without `step`, with the shapes, types and shardings of `like`; also moves `data`.

        Raises:
          UserError: there is no checkpoint, its files are not what was written, or it is of another model.
        """
        self.wait()
        step = self.latest_step() if step is None else step
        if step is None:
            raise UserError(f"{self.folder}: no checkpoint; run the train stage first")
        verify(self.folder / str(step), f"delete {self.folder / str(step)} and train again")
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        items = {"state": ocp.args.StandardRestore(abstract)} | ({"data": _DataArgs(data)} if data else {})
        try:
            restored = self._manager.restore(step, args=ocp.args.Composite(**items))
        except _UNREADABLE as error:
            raise UserError(f"{self.folder}/{step}: not a checkpoint of this model: {error}") from error
        _log.info("restored step %d from %s", step, self.folder)
        return restored["state"]

    def wait(self) -> None:
        """Returns when the last save is whole, or raises the `UserError` of one that failed."""
        with self._telling_failures():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the last save, as `wait` does."""
        with self._telling_failures():
            self._manager.close()
        if self._handle is not None:
            os.close(self._handle)
        if hosts.is_first() and not is_remote(self.folder):
            files.remove(self.folder / _TRASH)

    def _check_folder(self) -> None:
        """Orbax would make a folder that was deleted anew, with one step in it and without what else a run has."""
        if self._handle is None:
            self._handle = os.open(self.folder, os.O_RDONLY)  # while it is open, no other folder has its number
        if not self.folder.exists() or not os.path.samestat(os.fstat(self._handle), os.stat(self.folder)):
            raise FileNotFoundError("its folder was moved or deleted meanwhile")

    def _seal(self) -> None:
        """Writes the manifest of a step that is complete but for its name; Orbax calls it in the thread that saves."""
        if not hosts.is_first():
            return
        if is_remote(self.folder):
            step = Store(f"{self.folder}/{self._saving}")
            sums = {name: sum for name, sum in step.sums().items() if name not in _LATE}
            step.write(files.MANIFEST, json.dumps(sums, indent=2).encode())
            return
        (unnamed,) = self.folder.glob("*.orbax-checkpoint-tmp*")
        # Orbax writes the time of the commit into this one last; restoring does not depend on it.
        files.write_manifest(unnamed, but=_LATE)
        files.remove(self.folder / _TRASH)  # of the saves before

    @contextlib.contextmanager
    def _telling_failures(self) -> Iterator[None]:
        """Errors of writing, which may be another thread's and come late, in the words of the run."""
        try:
            yield
        except jax.errors.JaxRuntimeError:  # of a barrier: another process is gone
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(
                f"{self.folder}: a checkpoint cannot be written ({first_line(_reason(error))}); the finished ones are "
                "good: once that is mended, the same command goes on from the newest"
            ) from error


def _reason(error: Exception) -> str:
    """What the system says, and without that TensorStore, but for how it was asked, which comes last."""
    if number := files.disk_failure(error):
        return os.strerror(number)
    return str(error).partition(" [tensorstore_spec=")[0] or type(error).__name__
