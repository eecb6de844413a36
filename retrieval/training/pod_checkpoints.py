"""Checkpoints of a pod whose hosts have a disk each: the first writes for all, and the others fetch what they read.

So a step folder is whole on one disk, is sealed there, and goes to the store as that of a single host does.
"""

import base64
import functools
import json
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from retrieval.errors import UserError
from retrieval.runtime import hosts
from retrieval.training import checkpoint
from retrieval.training.checkpoint import Checkpointer, Follower, Resumable

# Brings files and folders, by their paths below the work directory, from the store.
Fetch = Callable[[Collection[str]], None]


class PodCheckpointer:
    """What a `Checkpointer` does, of all hosts together: they make the same calls in the same order."""

    def __init__(
        self,
        folder: Path,
        keep: int,
        best: str,
        follower: Follower | None,
        fetch: Fetch,
        *,
        named: Collection[int] = (),
    ):
        """The arguments are those of a `Checkpointer`.

        Args:
          folder: of this host.
          follower: in the first host, copies what is saved to the store.
          fetch: of the other hosts.
        """
        self.folder = folder.absolute()
        self._fetch = fetch
        self._writer = Checkpointer(folder, keep, best, follower, named=named, alone=True) if hosts.is_first() else None
        self._newest: int | None = hosts.on_first(lambda: self._first.latest_step())

    @property
    def _first(self) -> Checkpointer:
        assert self._writer is not None, "the other hosts have none"
        return self._writer

    def latest_step(self) -> int | None:
        """The newest step, which may be about to be finished, or None."""
        return self._newest

    def steps(self) -> list[int]:
        """Every finished step that is there. Only the first host knows."""
        return self._first.steps()

    def best_step(self) -> int | None:
        """As that of a `Checkpointer`."""
        return hosts.on_first(lambda: self._first.best_step())

    def save(self, step: int, state: Any, data: Resumable, scores: Mapping[str, float] | None = None) -> None:
        """As that of a `Checkpointer`, once the first host has what the others alone have.

        Raises:
          UserError: this step or one before it cannot be written.
        """
        if self._newest == step:
            return
        whole, positions = _whole(state), _Files.of(data)
        if self._writer:
            self._writer.save(step, whole, positions, scores)
        self._newest = step

    def check(self) -> None:
        """As that of a `Checkpointer`."""
        if self._writer:
            self._writer.check()

    def restore(self, like: Any, data: Resumable | None = None, step: int | None = None) -> Any:
        """As that of a `Checkpointer`.

        Raises:
          UserError: there is no checkpoint, its files are not what was written, or it is of another model.
        """
        self.wait()
        step = self._newest if step is None else step
        if step is None:
            raise UserError(f"{self.folder}: no checkpoint; run the train stage first")
        if not self._writer:
            self._fetch([f"{self.folder.name}/{step}"])
        state = checkpoint.read(self.folder, step, like)
        if data:
            data.restore(self.folder / str(step) / "data")
        return state

    def wait(self) -> None:
        """As that of a `Checkpointer`: then the store has all that is saved."""
        hosts.on_first(lambda: self._first.wait())

    def close(self) -> None:
        """As that of a `Checkpointer`."""
        if self._writer:
            self._writer.close()


Checkpoints = Checkpointer | PodCheckpointer


class _Files:
    """The files that the hosts' iterators write, all of them, as one `Resumable` that is only saved."""

    def __init__(self, contents: Mapping[str, bytes]):
        self._contents = contents

    @classmethod
    def of(cls, data: Resumable) -> "_Files":
        """Those of all hosts, in each."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            data.save(folder)
            paths = [path for path in folder.rglob("*") if path.is_file()]
            contents = {
                path.relative_to(folder).as_posix(): base64.b64encode(path.read_bytes()).decode() for path in paths
            }
        joined: dict[str, bytes] = {}
        for of_host in _gathered(json.dumps(contents).encode()):
            joined |= {name: base64.b64decode(content) for name, content in json.loads(of_host).items()}
        return cls(joined)

    def save(self, folder: Path) -> None:
        for name, content in self._contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def restore(self, folder: Path) -> None:
        raise NotImplementedError("each host restores its own iterator")


def _gathered(content: bytes) -> list[bytes]:
    """What every host has to give, in each of them."""
    sizes = multihost_utils.process_allgather(np.array(len(content))).ravel()
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [row[:size].tobytes() for row, size in zip(rows, sizes)]


def _whole(state: Any) -> Any:
    """The arrays of a state in the first host's memory, one after the other; None in the others."""
    return jax.tree.map(_leaf, state)


def _leaf(leaf: jax.Array) -> np.ndarray | None:
    if not leaf.is_fully_replicated:
        assert isinstance(leaf.sharding, NamedSharding), "states have these alone"
        leaf = _replicate(leaf.sharding.mesh)(leaf)
    return np.asarray(leaf.addressable_data(0)) if hosts.is_first() else None


@functools.cache
def _replicate(mesh: jax.sharding.Mesh) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda leaf: leaf, out_shardings=NamedSharding(mesh, PartitionSpec()))
