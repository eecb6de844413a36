"""Labelled questions that a run holds out of training, to validate on, and the set that it divides for that."""

from collections.abc import Sequence
from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.data.sets import beir, splits
from retrieval.runs.pipeline.run import Run


def split_set(run: Run) -> str | None:
    """The set whose questions were divided for fine-tuning."""
    return run.owner("sets").config.split.set if run.training.exists() else None


def divided_set(run: Run) -> str:
    """`split_set` of a run that has one.

    Raises:
      UserError: no questions were divided.
    """
    if (name := split_set(run)) is None:
        raise UserError(f"{run.training}: no training questions: set config.split.set, and --stage=split")
    return name


def validation_folder(run: Run) -> Path:
    """The BEIR folder of the questions that are held out of the training ones: of a set, or of labelled files."""
    for folder in (run.training, run.held_out_pairs):
        if folder.exists():
            return folder
    raise UserError(f"{run.pairs}: no query is held out to validate on: set config.loop.validate_every=0")


def validation(run: Run, ids: Sequence[str] = ()) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Questions that are held out of training: those of `ids`, or the first, as many as validate a checkpoint."""
    training = beir.read_judged(validation_folder(run))
    chosen = ids or list(training.qrels[splits.VALIDATION])[: run.config.loop.validate_queries]
    return {id: training.queries[id] for id in chosen}, {id: training.qrels[splits.VALIDATION][id] for id in chosen}
