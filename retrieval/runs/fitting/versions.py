"""Versions of the labelled pairs, which refreshes make: what a kind of refresh is, where one lies, and batches of it.

Version 0 is what the stage `pairs` wrote. The others lie in `refreshed/`, whole or not at all.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts
from retrieval.data.tokenizers.prefixes import Prefixes
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.recipes.towers import Embedder
from retrieval.runs.fitting import examples
from retrieval.runs.fitting.refresh_kind import FOLDER
from retrieval.runs.pipeline.run import Run

_log = logging.getLogger(__name__)

_VERSION, _STATISTICS = "version.json", "made.json"


# What was counted of a version.
Counts = Mapping[str, Any]
# Writes a version into an empty folder, and returns what was counted.
Write = Callable[[Path], Counts]


class RefreshInputs(NamedTuple):
    """What a version is made with.

    Attributes:
      embedder: of the run's towers, on the mesh.
      params: of the model, as they are at the refresh.
      version: its number, from 1 on.
    """

    vocabulary: Vocabulary
    prefixes: Prefixes
    embedder: Embedder
    mesh: jax.sharding.Mesh
    params: Any
    version: int


class RefreshedPairs:
    """Batches of one version of the pairs after another."""

    def __init__(self, kind: Any, run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh):
        """Begins with version 0; `kind` is the `refresh.RefreshKind` that makes the others.

        Raises:
          UserError: it has fewer examples than a batch has rows, or the next ones will have.
        """
        folder = run.folder
        kind.check_pairs(run.config, run.pairs)

        def make(version: int) -> examples.Batches:
            pairs = folder_of(folder, version) if version else None
            return examples.make_batches(run, vocabulary, mesh, pairs, version)

        self._kind, self._run, self._make = kind, run, make
        self._version, self._batches = 0, make(0)

    def __iter__(self) -> "RefreshedPairs":
        return self

    def __next__(self) -> dict[str, jax.Array]:
        return next(self._batches)

    def turn_to(self, version: int) -> None:
        """From now on the batches are of this version, from its beginning.

        Raises:
          UserError: its files are not what was written, or too few, or were made from other pairs.
        """
        folder = folder_of(self._run.folder, version)
        files.verify_manifest(folder, "delete the newest checkpoint, and train again")
        self._kind.check_version(self._run.pairs, folder, statistics(self._run.folder, version))
        self._version, self._batches = version, self._make(version)

    def save(self, folder: Path) -> None:
        """Writes version and position into `folder`."""
        if hosts.is_first():
            files.write_json(folder / _VERSION, self._version)
        self._batches.save(folder)

    def restore(self, folder: Path) -> None:
        """Goes back to a saved position, of whatever version."""
        if (version := files.read_json(folder / _VERSION)) != self._version:
            self.turn_to(version)
        self._batches.restore(folder)


class Schedule(NamedTuple):
    """When versions are made.

    Attributes:
      first: the step after which the first one is made.
      every: steps from one to the next.
    """

    first: int
    every: int

    def newest(self, step: int) -> int:
        """The newest version that is made after this step or one before it; 0 before the first one."""
        return 0 if step < self.first else 1 + (step - self.first) // self.every


def make(kind: Any, run: Run, inputs: RefreshInputs, step: int) -> None:
    """Makes a version with the parameters after a step, and writes it. Every process of the mesh takes its part.

    Raises:
      UserError: no batch would come of it.
    """

    def publish(write: Write) -> None:
        with files.atomic(folder_of(run.folder, inputs.version)) as temporary:
            temporary.mkdir()
            files.write_json(temporary / _STATISTICS, {**write(temporary), "step": step})
            files.write_manifest(temporary)
        run.put(FOLDER)

    kind.make(run, inputs, lambda write: hosts.on_first(lambda: publish(write)))


def statistics(folder: Path, version: int) -> dict[str, Any]:
    """What was counted when a version was made."""
    return files.read_json(folder_of(folder, version) / _STATISTICS)


def folder_of(folder: Path, version: int) -> Path:
    """Where a version lies in the folder of a run."""
    return folder / FOLDER / f"{version:05d}"


def drop_unneeded(folder: Path, version: int, when: Schedule, checkpoint_steps: Collection[int]) -> None:
    """Deletes the versions that are of no more use when this one is to come.

    Args:
      when: versions are made.
      checkpoint_steps: the steps of the checkpoints that a run may go on from.
    """
    place = folder / FOLDER
    files.remove_temporaries(place)
    # The batch of step s was of the newest version after step s - 1. The version before may be read by others now.
    needed = {version - 1, version} | {when.newest(step - 1) for step in checkpoint_steps}
    for path in place.glob("*"):
        if path.name.isdecimal() and int(path.name) not in needed:
            files.remove(path)


def is_there(folder: Path, version: int, step: int) -> bool:
    """Whether a version has been written with the parameters after this step, and is what was written."""
    path = folder_of(folder, version)
    if not path.exists():
        return False
    try:
        files.verify_manifest(path, "it is made again")
    except UserError as error:
        _log.warning("%s", error)
        return False
    return statistics(folder, version)["step"] == step
