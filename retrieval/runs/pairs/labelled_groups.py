"""The labelled examples of a run, by query: those of its files, and of the set that is divided for training."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.config.fields import values_of
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import grouping, labelled_format, pair_shards, sources
from retrieval.data.labelled.grouping import Counts, Example, Groups
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.labelled.merged_groups import MergedGroups
from retrieval.data.labelled.record_fields import Shape
from retrieval.data.sets import beir, document_labels, relevance, splits
from retrieval.data.sets.row_texts import CandidateTexts
from retrieval.runs.fitting import examples
from retrieval.runs.pipeline.run import Run

_LEFT_OUT = "queries of NQ's dev set, which everybody tests on", splits.is_of_nq_dev
_LOOKED_AT = 1000  # examples that are enough to look at before a run


@contextlib.contextmanager
def opened(run: Run, folder: Path, every: bool = False) -> Iterator[tuple[Groups | MergedGroups, Counts]]:
    """The examples, with what is counted on the way. Nobody trains on the questions of NQ's dev set.

    Of several sources these are `MergedGroups`.

    Args:
      folder: where temporary files may lie.
      every: whether a query keeps all of its negatives, and not `config.pairs.pool` of them.

    Raises:
      UserError: a file is not what its format says.
    """
    config = run.config
    _refuse_ids(config, run.corpus)
    if of_sources := sources.configs_of(config):
        with contextlib.ExitStack() as stack:
            opened = {}
            for name, own in of_sources.items():
                with sources.naming(name):
                    opened[name] = stack.enter_context(_opened(own, folder, every))
            merged = MergedGroups(opened, config.split.seed)
            yield merged, merged.counts
        return
    divides = run.training.exists()
    of_set = _of_set(run.training, run.negatives) if divides else ()
    has_mined = divides and run.negatives.exists()
    least = run.owner("mine").config.mine.negatives if has_mined else 0  # all that were mined
    with _opened(config, folder, every, least, of_set) as opened:
        yield opened, opened.counts


@contextlib.contextmanager
def _opened(
    config: ConfigDict, folder: Path, every: bool, least: int = 0, more: Iterable[Example] = ()
) -> Iterator[Groups]:
    """The examples of one source, or of the config where it has none, and `more`."""
    pool = sys.maxsize if every or are_apart(config) else config.pairs.pool  # each keeps so many where they are apart
    with labelled_format.grouped(_paths(config), settings(config), folder, max(pool, least), more) as (groups, _):
        yield groups.without(*_LEFT_OUT)


def _refuse_ids(config: ConfigDict, corpus: Path) -> None:
    """Checks that no file has ids of the corpus where its texts are trained on."""
    for own in sources.each(config).values():
        for path in _paths(own):
            if document_labels.read("", path, settings(own), corpus, relevance.DROP):
                way = "take it as config.sets.labelled, and config.split.set to divide it"
                raise UserError(f"{path}: its answers are ids of the corpus, and no texts: {way}")


def inputs(config: ConfigDict) -> Sequence[Path]:
    """The files of labelled examples, and those that have the texts of their ids."""
    of_sources = sources.each(config).values()
    paths = [path for own in of_sources for path in (*_paths(own), *settings(own).text_files)]
    return source_paths.existing(list(dict.fromkeys(paths)))


def _paths(config: ConfigDict) -> list[Path]:
    return labelled_format.files(config.pairs.files)


def check_files(writer: Run, negatives: int, batch_size: int) -> None:
    """Checks that files of labelled examples give a negative and a batch, as far as their first records tell.

    Where none of many has a negative, all are read. What a set gives beside files is known when it is divided.

    Args:
      writer: the run whose stage makes shards of them.
      negatives: of an example in a batch.
      batch_size: 0 where other examples fill batches too.

    Raises:
      UserError: none has a negative, there are fewer than a batch takes, or one of the first is broken.
    """
    config, positives, has_negative = writer.config, 0, not negatives or writer.config.pairs.keep_lone
    if writer.owner("sets").config.split.set or not config.pairs.files:
        return
    for path in _paths(config):
        for example in labelled_format.sample(path, settings(config)):
            positives += len(example.positives)
            has_negative = has_negative or bool(example.negatives)
            if has_negative and positives >= min(batch_size, _LOOKED_AT):
                return
    if not has_negative:
        why = f"has a negative, and config.data.negatives={negatives}: set that to 0, or name files with negatives"
        raise UserError(f"config.pairs.files={config.pairs.files}: none of {positives} labelled pairs {why}")
    if positives < batch_size:
        few = f"{positives} labelled pairs, fewer than config.train.batch_size={batch_size}"
        raise UserError(f"config.pairs.files={config.pairs.files}: {few}: more data or a smaller batch is needed")


def of_pages(config: ConfigDict) -> bool:
    """Whether a file of examples has pages, as `LabelledFormat.of_pages` says.

    Raises:
      UserError: the format of a file is not known.
    """
    return any(labelled_format.format_of(path, settings(config)).of_pages for path in _paths(config))


def shapes(config: ConfigDict) -> list[tuple[Path, Shape]]:
    """What the examples of each file are; of all of them, pairs with a score, or none."""
    shapes = [(path, labelled_format.shape(path, settings(config))) for path in _paths(config)]
    first_of = {shape.is_scored: path for path, shape in reversed(shapes)}
    if len(first_of) > 1:
        what = f"{first_of[True]} has pairs with a score, and {first_of[False]} positives, which other losses train on"
        raise UserError(f"config.pairs.files={config.pairs.files}: {what}: take files of one kind")
    return shapes


def are_apart(config: ConfigDict) -> bool:
    """Whether examples of a file keep their own texts, as `Shape.is_apart` says; errors are those of `shapes`."""
    return any(shape.is_apart for _, shape in shapes(config))


def are_scored(config: ConfigDict) -> bool:
    """Whether the files have pairs with a score, as `Shape.is_scored` says; errors are those of `shapes`."""
    return any(shape.is_scored for _, shape in shapes(config))


def check_scores(writer: Run, config: ConfigDict) -> None:
    """Checks that files of labelled examples have what a run's loss learns from: a teacher's scores, or pairs with one.

    Args:
      writer: the run whose stage makes shards of them.
      config: the run's own.
    """
    divided, of_files = writer.owner("sets").config.split.set, shapes(writer.config)
    has_teacher = bool(writer.teacher_scores) or (not divided and all(shape.has_scores for _, shape in of_files))
    is_scored = any(shape.is_scored for _, shape in of_files)
    whose = writer.config.pairs.files if of_files else f"config.split.set={divided}"
    examples.check_scores(config, has_teacher, is_scored, whose)
    if is_scored and config.loop.validate_every:
        why = "looks for the right documents of queries, and pairs with a score have none: set it to 0"
        raise UserError(f"config.loop.validate_every={config.loop.validate_every} {why}")


def settings(config: ConfigDict) -> Settings:
    """What the config says about files of labelled examples."""
    return Settings.of(values_of(config, labelled_format.OPTIONS))


def trained_on(run: Run, queries: Iterable[str]) -> list[str]:
    """Those of some questions, in any case, that the model of a run was trained on, or the run that it started from."""
    numbers = {query: pair_shards.wording(query) for query in queries}
    trainers = [run.owner("train")]
    for trainer in trainers:
        start = trainer.config.train.init_from
        if start and (Path(start) / "stages").is_dir():  # of a run, and no published model
            trainers.append(Run.opened(start, "config.train.init_from", run.lock).owner("train"))
    learned = (each for each in trainers if "train" in each.config.stages and examples.labelled(each.config))
    read = [pair_shards.read_wordings(each.pairs) for each in learned if not of_pages(each.config)]  # of many pages
    known = set(np.concatenate(read).tolist()) & set(numbers.values()) if read else set()
    return [query for query, number in numbers.items() if number in known]


def _of_set(folder: Path, negatives: Path) -> Iterator[Example]:
    """The training questions of a set, with what was mined for them; a base may have mined for others too."""
    training = beir.read_judged(folder)
    with CandidateTexts(folder / "corpus.jsonl", set(training.candidates)) as texts:
        yield from grouping.of_set(training, splits.TRAIN, lambda id: texts[texts.row_of[id]])
    if negatives.exists():
        queries = {training.queries[id] for id in training.qrels[splits.TRAIN]}
        mined = labelled_format.in_order([negatives / "negatives.jsonl"], Settings(), negatives)
        yield from (example for example in mined if example.query in queries)
