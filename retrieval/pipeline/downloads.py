"""What stages read of work directories on a store is copied down before they begin."""

from collections.abc import Sequence
from pathlib import Path

from retrieval.data.tokenizers import vocabularies
from retrieval.errors import UserError
from retrieval.pipeline.records import is_done, needs, record_of
from retrieval.pipeline.run import Run, open_read
from retrieval.pipeline.stage import STAGES
from retrieval.recipes import bert_weights, initial_parameters


def bring(run: Run, names: Sequence[str]) -> None:
    """Copies down what some stages have written before, what they read, and what that was made from.

    Raises:
      UserError: a store does not answer, or a record there is damaged.
    """
    for written in _by_folder(run, names).values():
        tops: list[str] = []
        sums: dict[str, str] = {}
        for name, holder in written.items():
            tops += STAGES[name].leaves
            if is_done(holder, name):
                tops += STAGES[name].outputs
                sums |= record_of(holder, name)["outputs"]
        if holder.copy:
            holder.copy.bring(tops, sums)
    start = run.config.train.init_from
    if "train" in names and start and not bert_weights.folders(run.config):
        initial_parameters.train_inputs(run)  # which says so where that is no finished run
        _bring_start(open_read(start, "config.train.init_from", run.lock))


def _by_folder(run: Run, names: Sequence[str]) -> dict[Path, dict[str, Run]]:
    """The stages, those that they read, and so on: the folder of a run -> the names of its stages -> the run.

    What they read only where it is there, with nothing of what that was made from.
    """
    found: dict[Path, dict[str, Run]] = {}
    pending = [(name, run) for name in names]
    while pending:
        name, holder = pending.pop()
        is_asked_for = name in names or name in holder.config.stages
        if is_asked_for and name not in found.setdefault(holder.folder, {}):
            found[holder.folder][name] = holder
            pending += needs(holder, name)
    for want in {want for name in names for want in STAGES[name].wants}:
        if is_done(run, want):
            holder = run.holder(want)
            found.setdefault(holder.folder, {})[want] = holder
    return found


def _bring_start(trained: Run) -> None:
    """The parameters to start from, and the vocabulary to compare with, either of which may be on a disk."""
    if trained.copy:
        trained.copy.bring(["checkpoints"])
    try:
        prepared = trained.holder("prepare")
    except UserError:  # the base of that run has gone, and its vocabulary with it
        return
    if copy := prepared.copy:
        copy.bring([f"corpus/{name}" for name in (*vocabularies.FILES, "merges.txt")])
