"""The stage `pairs`: labelled examples to the shards that fine-tuning reads."""

import dataclasses
import functools
import itertools
import logging
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
        evaluated = _evaluated(run, groups)
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
        share = f"{behind / (statistics['pairs'] + behind):.0%}"
        _log.warning("pairs: left out %d %s (%s of all), which is config.pairs.positives", behind, what, share)
        counts.left_out[what] = behind
    if config.pairs.in_order and config.split.shards != config.data.lanes:
        way = f"config.split.shards={config.data.lanes}, which config.data.lanes is"
        _log.warning("pairs: batches keep the order of the files where every lane has one shard: set %s", way)
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


def _evaluated(run: Run, groups: Groups | MergedGroups) -> int:
    """How many examples have a query of an evaluation set, or one that is held out; warns of these."""
    flatters = "what is measured there will flatter the model"
    config, mind = run.config, run.owner("sets").config.sets.mind
    both = set(source_paths.split(config.pairs.files)) & set(source_paths.split(mind))
    if both and not config.sets.mind_split:
        way = "set config.sets.mind_split, or take other files"
        _log.warning("pairs: %s is trained on and evaluated on: %s; %s", ", ".join(sorted(both)), flatters, way)
    if labelled_groups.of_pages(config):  # a user's pages of other times are no leak
        return 0
    paths = sorted(run.sets.glob("*/queries.jsonl"))
    queries = set(itertools.chain.from_iterable(beir.read_queries(path).values() for path in paths))
    if run.training.exists():
        divided = beir.read_judged(run.training)
        queries |= {divided.queries[id] for id in divided.qrels[splits.VALIDATION]}
    wordings = set(map(splits.wording, queries))
    if count := sum(splits.wording(group.query) in wordings for group in groups):
        what = "queries are also those of an evaluation set, or held out to validate on"
        _log.warning("pairs: %d %s: %s", count, what, flatters)
    return count


def _commits(config: ConfigDict) -> dict[str, Any]:
    """The commits of the data sets of the hub."""
    fields = ("files", *source_pairs.WITH_TEXTS)
    values = [own.pairs[field] for own in sources.each(config).values() for field in fields]
    named = [name for value in values for name in source_paths.split(value)]
    commits = {name: hub_datasets.commit(name) for name in named if hub_datasets.is_name(name)}
    return {"commits": commits} if commits else {}


def check_lone(config: ConfigDict) -> None:
    """Checks that pairs without a hard negative can be kept: the place of the negative has a copy of the positive."""
    for name, own in sources.each(config).items() if config.pairs.keep_lone else ():
        recipe, wrong = recipe_of(own), ""
        if field := recipe.loss and recipe.loss.counts_copies:
            wrong = f"config.{field}={values_of(own, [field])[field]} would count a copy of a positive as a second one"
        elif every := own.mine.refresh_every:
            wrong = f"what config.mine.refresh_every={every} mines has no pairs without a negative"
        if wrong:
            with sources.naming(name):
                raise UserError(f"config.pairs.keep_lone=True: {wrong}; set one of the two otherwise")


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
        lack = f"config.train.guide={named}: the labelled pairs of {writer.display_path} have not its embeddings"
        raise UserError(f"{lack}: set it there and make them again, or add 'pairs' to config.stages")


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
