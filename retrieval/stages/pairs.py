"""The stage `pairs`: labelled examples to the shards that fine-tuning reads."""

import dataclasses
import functools
import itertools
import logging
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.common import files, libraries
from retrieval.common.errors import UserError
from retrieval.common.runtime import hub_datasets
from retrieval.config.fields import values_of
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import grouping, sources
from retrieval.data.labelled.grouping import Counts, Groups
from retrieval.data.labelled.merged_groups import MergedGroups
from retrieval.data.labelled.teacher_scores import TeacherScores
from retrieval.data.sets import beir, splits
from retrieval.data.tokenizers import prefixes
from retrieval.data.tokenizers.prefixes import TextSizes
from retrieval.recipes.recipe import guide_of, recipe_of
from retrieval.runs.fitting import data_warnings, examples
from retrieval.runs.fitting.examples import check_shards
from retrieval.runs.fitting.source_batches import folder_of
from retrieval.runs.pairs import guided_pairs, hard_negatives, labelled_groups, source_pairs
from retrieval.runs.pipeline.records import is_done
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.weights import guide

_JOINED = "queries with the wording of a held-out one, held out with it"
_log = logging.getLogger(__name__)


def write_pairs(run: Run) -> dict[str, Any]:
    """Writes `pairs/`, the shards that fine-tuning reads; returns their statistics."""
    config, vocabulary = run.config, run.load_vocabulary()
    teacher = TeacherScores(path) if (path := run.teacher_scores) else None
    run.pairs.mkdir(exist_ok=True)
    with labelled_groups.opened(run, run.pairs) as (groups, counts):
        # A user's pages of other times are no leak.
        elsewhere = set() if labelled_groups.of_pages(config) else _evaluated(run.sets, run.training)
        evaluated = sum(splits.wording(group.query) in elsewhere for group in groups)
        counts.log("pairs")
        queries = counts.queries  # of the whole pass: a shorter one counts anew
        looked_at = list(itertools.islice(groups, data_warnings.IN_A_RUN))
        data_warnings.warn("pairs", data_warnings.of_labelled(looked_at, TextSizes.of(config.data, vocabulary)))
        if not run.prepares:
            beir.write_candidates(run.pairs / "passages.jsonl", grouping.passages(groups))
        trained, held_out = _hold_out(run, groups, counts, queries)
        if isinstance(trained, MergedGroups):
            statistics = source_pairs.write(config, trained, vocabulary, run.pairs, teacher)
        else:
            rows = functools.partial(guided_pairs.rows_of, run) if config.train.guide else None
            statistics = source_pairs.write_shards(config, trained, vocabulary, run.pairs, teacher, guide=rows)
    if config.train.guide:
        statistics["guide"] = guide.fingerprint(run)
        files.write_json(run.pairs / "stats.json", statistics)
    if behind := statistics.pop("positives left out"):
        what = f"positives behind the first {config.pairs.positives} of their query"
        known = statistics["pairs"] + behind
        share = f"{100 * behind / known:.0f} % of {known}, which is config.pairs.positives"
        _log.warning("pairs: left out %d %s (%s)", behind, what, share)
        counts.left_out[what] = behind
    _warn(run, evaluated)
    files.remove_temporaries(run.pairs)
    left_out = {what: number for what, number in counts.left_out.items() if number}
    of_queries = {"validation queries": held_out, "evaluated queries": evaluated, "left out": left_out}
    return statistics | of_queries | _commits(config) | {"vocabulary": vocabulary.fingerprint}


def _hold_out(
    run: Run, groups: Groups | MergedGroups, counts: Counts, queries: int
) -> tuple[Groups | MergedGroups, int]:
    """The examples without the queries that are held out to validate on, which are written; and how many these are.

    Args:
      queries: of the examples.
    """
    are_scored = any(map(labelled_groups.are_scored, sources.each(run.config).values()))
    drawn = 0 if run.training.exists() or are_scored else splits.held_out(queries, run.config.split.validation)
    if not drawn:
        return groups, 0
    wordings = {splits.wording(group.query) for group in itertools.islice(groups, drawn)}
    same_wording = groups.where(lambda query: splits.wording(query) in wordings)
    validation = grouping.evaluation_set("validation", same_wording, splits.VALIDATION)
    beir.write_folder(run.held_out_pairs, validation)
    if joined := len(validation.queries) - drawn:
        counts.left_out[_JOINED] = joined
        _log.info("pairs: %d %s", joined, _JOINED)
    return groups.where(lambda query: splits.wording(query) not in wordings), len(validation.queries)


def _warn(run: Run, evaluated: int) -> None:
    """Warns of an order that is not kept, and of what is trained on and evaluated on."""
    config, flatters = run.config, "what is measured there will flatter the model"
    if config.pairs.in_order and config.split.shards != config.data.lanes:
        _log.warning(
            "pairs: batches keep the order of the files where every lane has one shard: set config.split.shards=%d, "
            "which config.data.lanes is",
            config.data.lanes,
        )
    if evaluated:
        what = "queries are also those of an evaluation set, or held out to validate on"
        _log.warning("pairs: %d %s: %s", evaluated, what, flatters)
    both = set(source_paths.split(config.pairs.files)) & set(source_paths.split(run.owner("sets").config.sets.mind))
    if both and not config.sets.mind_split:
        way_out = "set config.sets.mind_split, or take other files"
        _log.warning("pairs: %s is trained on and evaluated on: %s; %s", ", ".join(sorted(both)), flatters, way_out)


def _commits(config: ConfigDict) -> dict[str, Any]:
    """The commits of the data sets of the hub."""
    fields = ("files", *source_pairs.WITH_TEXTS)
    values = [own.pairs[field] for own in sources.each(config).values() for field in fields]
    named = [name for value in values for name in source_paths.split(value)]
    commits = {name: hub_datasets.commit(name) for name in named if hub_datasets.is_name(name)}
    return {"commits": commits} if commits else {}


def check_lone(config: ConfigDict) -> None:
    """Checks that pairs without a hard negative can be kept: the place of the negative has a copy of the positive.

    Raises:
      UserError: a loss would count the copy, or pairs are mined anew.
    """
    if not config.pairs.keep_lone:
        return
    for name, own in sources.each(config).items():
        recipe = recipe_of(own)
        with sources.naming(name):
            if field := recipe.loss and recipe.loss.counts_copies:
                (value,) = values_of(own, [field]).values()
                raise UserError(
                    f"config.pairs.keep_lone=True: config.{field}={value} would count the copy of a positive as a "
                    f"second one: set config.pairs.keep_lone=False, or another config.{field}"
                )
            if every := own.mine.refresh_every:
                raise UserError(
                    f"config.pairs.keep_lone=True and config.mine.refresh_every={every}: what is mined anew has no "
                    "pairs without a negative; set one of the two back"
                )


def check_reader(writer: Run, reader: Run) -> None:
    """Checks that a run which trains on the pairs gets as many shards, negatives and scores as it takes, and its guide.

    What is not written yet is told by the beginnings of its files.
    """
    config = reader.config
    check_shards(config.data.lanes, writer.config.split.shards, "labelled pairs, config.split.shards")
    miner = writer.owner("mine")
    if "mine" in miner.config.stages and writer.owner("sets").config.split.set:
        place = "" if miner.folder == reader.folder else miner.display_path
        hard_negatives.check_drawn(config.data.negatives, miner.config.mine.negatives, place)
    source_pairs.check_written(config, writer)
    is_there, theirs = is_done(writer, "pairs"), sources.each(writer.config)
    least = 0 if examples.unlabelled(config) else config.train.batch_size
    for name, own in sources.each(config).items():
        folder = folder_of(writer.pairs, name) if name else writer.pairs
        with sources.naming(name):
            if not is_there:
                of_source = dataclasses.replace(writer, config=theirs[name])
                labelled_groups.check_scores(of_source, own)
                labelled_groups.check_files(of_source, own.data.negatives, least)
            elif (folder / "stats.json").exists():
                examples.check_stored(own, folder)
    named, statistics = guide_of(recipe_of(config)), writer.pairs / "stats.json"
    if not named or writer is reader:
        return
    if not statistics.exists() or files.read_json(statistics).get("guide") != guide.fingerprint(reader):
        raise UserError(
            f"config.train.guide={named}: the labelled pairs of {writer.display_path} have not its embeddings: set it "
            "there and make them again, or add 'pairs' to config.stages"
        )


def _evaluated(sets: Path, training: Path) -> set[str]:
    """The wordings of the queries of the evaluation sets, and of those that are held out to validate on."""
    folders = [path for path in sets.iterdir() if path.is_dir()] if sets.exists() else []
    queries = {query for folder in folders for query in beir.read_queries(folder / "queries.jsonl").values()}
    if training.exists():
        divided = beir.read_judged(training)
        queries |= {divided.queries[id] for id in divided.qrels[splits.VALIDATION]}
    return set(map(splits.wording, queries))


STAGES.register(
    "pairs",
    Stage(
        write_pairs,
        check_config=(check_lone,),
        check=(libraries.check_training, source_pairs.check_inputs, Run.check_vocabulary, guide.check),
        check_reader=check_reader,
        fields=("split", "pairs", "sets.mind_split", "train.guide", *prefixes.FIELDS),
        also_reads=("encode.batch_tokens",),
        reads=("prepare", "sets", "mine", "teacher"),
        files=lambda run: [
            *labelled_groups.inputs(run.config),
            *source_pairs.teacher_inputs(run.config.pairs.teacher),
            *guide.inputs(run),
            *run.vocabulary_inputs(),
        ],
        fetch=guide.fetch,
        writes=("pairs",),
    ),
)
