"""Labelled examples of several sources as shards, a folder each; what does not go with sources is refused."""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.runtime import hub_datasets
from retrieval.config.fields import values_of
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import labelled_format, pair_shards, sources, teacher_scores
from retrieval.data.labelled.grouping import Groups
from retrieval.data.labelled.merged_groups import MergedGroups, WithoutPositives
from retrieval.data.labelled.pair_shards import GuideRows, KnownPositives
from retrieval.data.labelled.teacher_scores import TeacherScores
from retrieval.data.tokenizers.prefixes import Prefixes
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.recipes.recipe import has_teacher, recipe_of
from retrieval.runs.fitting.source_batches import folder_of
from retrieval.runs.pairs import labelled_groups
from retrieval.runs.pipeline.run import Run

_log = logging.getLogger(__name__)

WITH_TEXTS = ("queries", "collection")  # fields that name the texts of ids
_SUMS = ("pairs", "pairs with negatives", "positives left out")


def write_shards(
    config: ConfigDict,
    groups: Groups | WithoutPositives,
    vocabulary: Vocabulary,
    folder: Path,
    teacher: TeacherScores | None,
    known: KnownPositives | None = None,
    guide: GuideRows | None = None,
) -> dict[str, Any]:
    """Writes the shards of examples that have no sources, or of one; returns their statistics.

    Arguments and errors are those of `pair_shards.PairWriter`; the config is the source's own.
    """
    apart = None
    if config.pairs.in_order:
        paths, settings = labelled_format.files(config.pairs.files), labelled_groups.settings(config)
        apart = functools.partial(labelled_format.in_order, paths, settings, folder)
    elif labelled_groups.are_apart(config):
        apart = functools.partial(groups.apart, config.pairs.pool)
    writer = pair_shards.PairWriter(
        groups,
        vocabulary,
        config.pairs.positives,
        apart=apart,
        in_order=config.pairs.in_order,
        teacher=teacher,
        keep_lone=config.pairs.keep_lone,
        prefixes=Prefixes.of(config.data, vocabulary),
        known=known,
        guide=guide,
        is_scored=labelled_groups.are_scored(config),
    )
    return writer.write(folder, config.split.shards)


def write(
    config: ConfigDict, groups: MergedGroups, vocabulary: Vocabulary, folder: Path, teacher: TeacherScores | None
) -> dict[str, Any]:
    """Writes the shards of every source; returns what was counted, of all and of each.

    A positive of a query is none of its negatives and is known as its positive, whichever source has it.

    Args:
      teacher: the scores of the pairs of sources whose loss learns them, where there are some.

    Raises:
      UserError: a source has no example, or the teacher has no score of a pair.
    """
    known, written = pair_shards.known_of(groups), {}
    for name, own in sources.configs_of(config).items():
        counts, kept = groups.sources[name].counts, WithoutPositives(groups.of_source(name), known)
        own_teacher = teacher if has_teacher(recipe_of(own)) else None
        with sources.naming(name):
            counted = write_shards(own, kept, vocabulary, folder_of(folder, name), own_teacher, known)
        counts.left_out["negatives that another source knows as positives"] = kept.left_out
        left_out = {what: number for what, number in counts.left_out.items() if number}
        written[name] = counted | {"examples": counts.examples, "queries": counts.queries, "left out": left_out}
        numbers = (written[name][what] for what in ("pairs", "queries", "negatives per pair"))
        _log.info("pairs: source '%s': %d pairs of %d queries, %g negatives on average", name, *numbers)
    if groups.shared:
        _log.info("pairs: %d queries are in several sources, with the positives of all", groups.shared)
    sums = {what: sum(statistics[what] for statistics in written.values()) for what in _SUMS}
    return sums | {"most positives": known.most, "queries of several sources": groups.shared, "sources": written}


def check_written(config: ConfigDict, writer: Run) -> None:
    """Checks that a run trains on the sources that its pairs are made of; weights, negatives and losses are its own.

    Args:
      writer: the run whose stage `pairs` makes them.
    """
    fields, both = (*sources.FILE_KEYS.values(), *sources.PROMPT_KEYS.values()), (config, writer.config)
    ours, theirs = ({n: values_of(own, fields) for n, own in sources.configs_of(each).items()} for each in both)
    if other := next((name for name in (*theirs, *ours) if ours.get(name) != theirs.get(name)), ""):
        what = f"source '{other}' is not as in {writer.display_path}, whose pairs are trained on"
        way = "take the files and prompts from there, or put 'pairs' into config.stages"
        raise UserError(f"config.{sources.FIELD}: {what}: {way}")


def check(config: ConfigDict, divided_set: str) -> None:
    """Checks that nothing is set that does not go with several sources.

    Args:
      divided_set: the evaluation set that is divided for training, '' if none is.
    """
    others = values_of(config, ("train.guide", "pairs.files", "pairs.in_order")) | {"split.set": divided_set}
    if field := next((field for field, value in others.items() if value), ""):
        raise UserError(f"config.{field}={others[field]} does not go with config.{sources.FIELD}: set one of them back")
    for name, own in sources.configs_of(config).items():
        if labelled_groups.of_pages(own):
            why = "has pages, each with negatives of its own, which no source keeps: name it in config.pairs.files"
            raise UserError(f"source '{name}': {own.pairs.files} {why}")
        if config.pairs.positives and labelled_groups.are_apart(own):
            why = f"has scores of each record, and config.pairs.positives={config.pairs.positives} goes by query: set 0"
            raise UserError(f"source '{name}': {own.pairs.files} {why}")


def teacher_inputs(path: str) -> Sequence[Path]:
    """The file of a teacher's scores, if `config.pairs.teacher` names one."""
    return source_paths.existing([Path(path)]) if path else ()


def check_inputs(run: Run) -> None:
    """Checks that there are labelled examples, each file by its beginning, and that the config goes with them.

    Raises:
      UserError: there are none, a file is missing or of no known format, or something goes by query where examples stay
        apart.
    """
    config, pairs = run.config, run.config.pairs
    divided_set = run.owner("sets").config.split.set
    if not (pairs.files or pairs.sources or divided_set):
        way = "config.pairs.sources, or config.split.set to an evaluation set to divide, such as reqa"
        raise UserError(f"stage 'pairs' needs labelled examples: set config.pairs.files to files of them, {way}")
    for name, own in sources.each(config).items():
        with sources.naming(name):
            _check_files(own)
    if pairs.sources:
        check(config, divided_set)
    for path in teacher_inputs(pairs.teacher):
        teacher_scores.check_beginning(path)
    what = "config.pairs.in_order=True keeps the order of" if pairs.in_order else ""
    if not what and labelled_groups.are_apart(config):
        what = "examples have the negatives of their page, or the scores of their record, in"
    if what and (divided_set or pairs.positives):
        other = f"config.split.set={divided_set}" if divided_set else f"config.pairs.positives={pairs.positives}"
        raise UserError(f"{what} config.pairs.files, and {other} goes by query: set one of them back")


def _check_files(config: ConfigDict) -> None:
    for field in (*WITH_TEXTS, "files", "teacher"):
        either = None if field in ("collection", "files") else False
        named = [name for name in source_paths.split(config.pairs[field]) if not hub_datasets.is_name(name)]
        source_paths.checked(f"config.pairs.{field}", named, either)
    for path in labelled_format.files(config.pairs.files):
        labelled_format.check(path, labelled_groups.settings(config))
