"""Stages that all hosts of a pod run, where these have no disk in common: what they read and write is on a store."""

import contextlib
from collections.abc import Iterator

from retrieval import files
from retrieval.pipeline import downloads
from retrieval.pipeline.records import read_own_record
from retrieval.pipeline.stage import STAGES
from retrieval.pipeline.work_directory import CONFIG, WorkDirectory
from retrieval.runtime import hosts
from retrieval.runtime.shared_folder import SharedFolder


@contextlib.contextmanager
def one_disk(run: WorkDirectory, name: str) -> Iterator[None]:
    """Runs a block on all hosts as if they had one disk: it begins with what the stage reads, on each of them.

    At the end the first host has what the others have written.

    Raises:
      UserError: a file cannot be copied, or is not what was written.
    """
    _fetch(run, name)
    if hosts.is_alone() or not run.copy:
        yield
        return
    stage = STAGES[name]
    with hosts.sharing(SharedFolder(run.copy, (*stage.writes, *stage.exchanged))):
        yield


def _fetch(run: WorkDirectory, name: str) -> None:
    """Copies down what a stage reads, to the other hosts than the first, which has it.

    What they have written of the stage is kept where the stage goes on with the same inputs.

    Raises:
      UserError: a store does not answer, or a record there is damaged.
    """
    if hosts.is_first():
        return
    if run.copy:
        before = read_own_record(run, name)
        run.copy.fetch([CONFIG, "stages"])
        now = read_own_record(run, name)
        if not (before and now and not before["done"] and before["inputs"] == now["inputs"]):
            for output in STAGES[name].writes:
                files.remove(run.folder / output)
    downloads.bring(run, [name])
