"""The labelled examples of a run, by query: those of its files, and of the set that is divided for training."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from retrieval.config.fields import values_of
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import grouping, jsonl_pairs, labelled_format
from retrieval.data.labelled.grouping import Counts, Example, Groups
from retrieval.data.sets import beir, nq_dev, splits
from retrieval.data.sets.candidate_texts import CandidateTexts
from retrieval.stage_outputs import Run


@contextlib.contextmanager
def opened(run: Run, folder: Path, every: bool = False) -> Iterator[tuple[Groups, Counts]]:
    """The examples, with what is counted on the way. Nobody trains on the questions of NQ's dev set.

    Args:
      folder: where temporary files may lie.
      every: whether a query keeps all of its negatives, and not `config.pairs.pool` of them.

    Raises:
      UserError: a file is not what its format says.
    """
    config, divides = run.config, run.training.exists()
    of_set = _of_set(run.training, run.negatives) if divides else ()
    paths = [Path(path) for path in source_paths.split(config.pairs.files)]
    pool = sys.maxsize if every or of_pages(config) else config.pairs.pool  # of a user's pages, each keeps so many
    if divides and run.negatives.exists():  # all that were mined
        pool = max(pool, run.holder("mine").config.mine.negatives)
    with labelled_format.grouped(paths, settings(config), folder, pool, of_set) as (groups, counts):
        yield groups.without("queries of NQ's dev set, which everybody tests on", nq_dev.asks), counts


def inputs(config: ConfigDict) -> Sequence[Path]:
    """The files of labelled examples, and those that have the texts of their ids."""
    paths = map(Path, source_paths.split(config.pairs.files))
    return source_paths.existing([*paths, *settings(config).text_files])


def of_pages(config: ConfigDict) -> bool:
    """Whether a file of examples has pages, as `LabelledFormat.of_pages` says.

    Raises:
      UserError: the format of a file is not known.
    """
    paths = source_paths.split(config.pairs.files)
    return any(labelled_format.format_of(Path(path), settings(config)).of_pages for path in paths)


def settings(config: ConfigDict) -> labelled_format.Settings:
    """What the config says about files of labelled examples."""
    return labelled_format.Settings.of(values_of(config, labelled_format.OPTIONS))


def _of_set(folder: Path, negatives: Path) -> Iterator[Example]:
    """The training questions of a set, with what was mined for them; a base may have mined for others too."""
    training = beir.read_judged(folder)
    with CandidateTexts(folder / "corpus.jsonl", set(training.candidates)) as texts:
        yield from grouping.of_set(training, splits.TRAIN, lambda id: texts[texts.row_of[id]])
    if negatives.exists():
        asked = {training.queries[id] for id in training.qrels[splits.TRAIN]}
        mined = jsonl_pairs.read(negatives / "negatives.jsonl", Counts())
        yield from (example for example in mined if example.query in asked)
