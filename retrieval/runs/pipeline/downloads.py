"""What stages read of work directories on a store is copied down before they begin."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval.common.runtime import hosts
from retrieval.common.runtime.artefacts import Exchange
from retrieval.runs.pipeline.records import is_done, needs, record_of
from retrieval.runs.pipeline.stage import STAGES
from retrieval.runs.pipeline.work_directory import WorkDirectory


def bring(run: WorkDirectory, names: Sequence[str]) -> None:
    """Copies down what some stages have written before, what they read, and what that was made from.

    Raises:
      UserError: a store does not answer, or a record there is damaged.
    """
    for name in names:  # what is here of an unfinished stage is of use where its record here was that of the store
        if run.remote and f"stages/{name}.json" in run.remote.changed and not is_done(run, name):
            run.remote.drop(run.remote.looks(STAGES[name].writes))
    for written in _by_folder(run, names).values() if any(of.remote for of in run.chain) else ():
        tops: list[str] = []
        sums: dict[str, str] = {}
        for name, owner in written.items():
            tops += STAGES[name].side_outputs
            if is_done(owner, name):
                tops += STAGES[name].writes
                sums |= record_of(owner, name)["outputs"]
        if owner.remote:
            owner.remote.get(tops, sums)
    for name in names:
        STAGES[name].fetch(run)


@contextlib.contextmanager
def one_disk(run: WorkDirectory, name: str) -> Iterator[None]:
    """Runs a block on all hosts as if they had one disk: it begins with what the stage reads, on each of them.

    At the end the first host has what the others have written.

    Raises:
      UserError: a file cannot be copied, or is not what was written.
    """
    if not hosts.is_first():  # the first one has it
        if run.remote:
            run.remote.refresh()
        bring(run, [name])
    if hosts.is_alone() or not run.remote:
        yield
        return
    stage = STAGES[name]
    with hosts.sharing(Exchange(run.remote, (*stage.writes, *stage.shared_between_hosts))):
        yield


def _by_folder(run: WorkDirectory, names: Sequence[str]) -> dict[Path, dict[str, WorkDirectory]]:
    """The stages, those that they read, and so on: the folder of a run -> the names of its stages -> the run.

    What they read only where it is there, with nothing of what that was made from.
    """
    read: dict[Path, dict[str, WorkDirectory]] = {}
    pending = [(name, run) for name in names]
    while pending:
        name, owner = pending.pop()
        is_read = name in names or name in owner.config.stages or is_done(owner, name)
        if is_read and name not in read.setdefault(owner.folder, {}):
            read[owner.folder][name] = owner
            for below, of in needs(owner, name):
                if below.is_optional:
                    read.setdefault(of.folder, {}).setdefault(below.stage, of)
                else:
                    pending.append((below.stage, of))
    return read
