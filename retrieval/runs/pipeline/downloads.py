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
        if run.copy and f"stages/{name}.json" in run.copy.changed and not is_done(run, name):
            run.copy.drop(run.copy.looks(STAGES[name].writes))
    for written in _by_folder(run, names).values() if any(of.copy for of in run.chain) else ():
        tops: list[str] = []
        sums: dict[str, str] = {}
        for name, holder in written.items():
            tops += STAGES[name].leaves
            if is_done(holder, name):
                tops += STAGES[name].writes
                sums |= record_of(holder, name)["outputs"]
        if holder.copy:
            holder.copy.get(tops, sums)
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
        if run.copy:
            run.copy.refresh()
        bring(run, [name])
    if hosts.is_alone() or not run.copy:
        yield
        return
    stage = STAGES[name]
    with hosts.sharing(Exchange(run.copy, (*stage.writes, *stage.exchanged))):
        yield


def _by_folder(run: WorkDirectory, names: Sequence[str]) -> dict[Path, dict[str, WorkDirectory]]:
    """The stages, those that they read, and so on: the folder of a run -> the names of its stages -> the run.

    What they read only where it is there, with nothing of what that was made from.
    """
    read: dict[Path, dict[str, WorkDirectory]] = {}
    pending = [(name, run) for name in names]
    while pending:
        name, holder = pending.pop()
        is_read = name in names or name in holder.config.stages or is_done(holder, name)
        if is_read and name not in read.setdefault(holder.folder, {}):
            read[holder.folder][name] = holder
            for below, of in needs(holder, name):
                if below.is_optional:
                    read.setdefault(of.folder, {}).setdefault(below.stage, of)
                else:
                    pending.append((below.stage, of))
    return read
