"""The stage `pairs`: labelled examples to the shards that fine-tuning reads."""

import functools
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval import extras, files
from retrieval.config.fields import values_of
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import grouping, labelled_format, pair_shards, sources, teacher_scores
from retrieval.data.labelled.grouping import Groups
from retrieval.data.labelled.merged_groups import MergedGroups
from retrieval.data.labelled.teacher_scores import TeacherScores
from retrieval.data.sets import beir, splits
from retrieval.data.tokenizers import prefixes
from retrieval.data.tokenizers.prefixes import Prefixes, TextSizes
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes import guide
from retrieval.recipes.recipe import recipe_of
from retrieval.runtime import hub_datasets
from retrieval.stages import data_warnings, guided_pairs, labelled_groups, source_pairs

_WITH_TEXTS = ("queries", "collection")  # fields that name the texts of ids
_JOINED = "queries with the wording of a held-out one, held out with it"
_log = logging.getLogger(__name__)


def write_pairs(run: Run) -> dict[str, Any]:
    """Writes `pairs/`, the shards that fine-tuning reads; returns their statistics."""
    config = run.config
    split_set, named = run.training.exists(), config.train.guide
    vocabulary, of_pages = run.load_vocabulary(), labelled_groups.of_pages(config)
    are_scored = any(map(labelled_groups.are_scored, sources.each(config).values()))
    teacher = TeacherScores(path) if (path := run.teacher_scores) else None
    run.pairs.mkdir(exist_ok=True)
    with labelled_groups.opened(run, run.pairs) as (groups, counts):
        asked = set() if of_pages else _asked(run.sets, run.training)  # a user's pages of other times are no leak
        evaluated = sum(splits.wording(group.query) in asked for group in groups)
        counts.log("pairs")
        queries = counts.queries  # of the whole pass: a shorter one counts anew
        looked_at = list(itertools.islice(groups, data_warnings.IN_A_RUN))
        data_warnings.warn("pairs", data_warnings.of_labelled(looked_at, TextSizes.of(config.data, vocabulary)))
        drawn = 0 if split_set or are_scored else splits.held_out(queries, config.split.validation)
        wordings = {splits.wording(group.query) for group in itertools.islice(groups, drawn)}
        held_out = 0
        if drawn:
            same_wording = groups.where(lambda query: splits.wording(query) in wordings)
            validation = grouping.evaluation_set("validation", same_wording, splits.VALIDATION)
            beir.write_folder(run.held_out_pairs, validation)
            held_out = len(validation.queries)
            if joined := held_out - drawn:
                counts.left_out[_JOINED] = joined
                _log.info("pairs: %d %s", joined, _JOINED)
        if not run.prepares:
            beir.write_candidates(run.pairs / "passages.jsonl", grouping.passages(groups))
        groups = groups.where(lambda query: splits.wording(query) not in wordings)
        if isinstance(groups, MergedGroups):
            statistics = source_pairs.write(config, groups, vocabulary, run.pairs, teacher)
        else:
            rows = functools.partial(guided_pairs.rows_of, run) if named else None
            statistics = _write(config, groups, vocabulary, run.pairs, teacher, rows)
    if named:
        statistics["guide"] = guide.fingerprint(run)
        files.write_json(run.pairs / "stats.json", statistics)
    if behind := statistics.pop("positives left out"):
        what = f"positives behind the first {config.pairs.positives} of their query"
        known = statistics["pairs"] + behind
        share = f"{100 * behind / known:.0f} % of {known}, which is config.pairs.positives"
        _log.warning("pairs: left out %d %s (%s)", behind, what, share)
        counts.left_out[what] = behind
    if config.pairs.in_order and config.split.shards != config.data.lanes:
        _log.warning(
            "pairs: batches keep the order of the files where every lane has one shard: set config.split.shards=%d, "
            "which config.data.lanes is",
            config.data.lanes,
        )
    if evaluated:
        _log.warning(
            "pairs: %d queries are also those of an evaluation set, or held out to validate on: what is measured there "
            "will flatter the model",
            evaluated,
        )
    both = set(source_paths.split(config.pairs.files)) & set(source_paths.split(run.holder("sets").config.sets.mind))
    if both and not config.sets.mind_split:
        _log.warning(
            "pairs: %s is trained on and evaluated on: what is measured there will flatter the model; set "
            "config.sets.mind_split, or take other files",
            ", ".join(sorted(both)),
        )
    files.remove_temporaries(run.pairs)
    left_out = {what: number for what, number in counts.left_out.items() if number}
    of_queries = {"validation queries": held_out, "evaluated queries": evaluated, "left out": left_out}
    return statistics | of_queries | _commits(config) | {"vocabulary": vocabulary.fingerprint}


def _commits(config: ConfigDict) -> dict[str, Any]:
    """The commits of the data sets of the hub."""
    values = [own.pairs[field] for own in sources.each(config).values() for field in ("files", *_WITH_TEXTS)]
    named = [name for value in values for name in source_paths.split(value)]
    found = {name: hub_datasets.commit(name) for name in named if hub_datasets.is_name(name)}
    return {"commits": found} if found else {}


def _write(
    config: ConfigDict,
    groups: Groups,
    vocabulary: Vocabulary,
    folder: Path,
    teacher: TeacherScores | None,
    rows: pair_shards.GuideRows | None,
) -> dict[str, Any]:
    """The shards of examples that have no sources; their statistics."""
    paths = labelled_format.files(config.pairs.files)
    read = functools.partial(labelled_format.in_order, paths, labelled_groups.settings(config), folder)
    return pair_shards.write_pairs(
        groups,
        vocabulary,
        folder,
        config.split.shards,
        config.pairs.positives,
        read if config.pairs.in_order else None,
        teacher,
        config.pairs.keep_lone,
        apart=functools.partial(groups.apart, config.pairs.pool) if labelled_groups.are_apart(config) else None,
        prefixes=Prefixes.of(config.data, vocabulary),
        guide=rows,
        is_scored=labelled_groups.are_scored(config),
    )


def teacher_inputs(path: str) -> Sequence[Path]:
    """The file of a teacher's scores, if `config.pairs.teacher` names one."""
    return source_paths.existing([Path(path)]) if path else ()


def check_inputs(run: Run) -> None:
    """Checks that there are labelled examples, each file by its beginning.

    Raises:
      UserError: there are none, or a file is missing or of no known format.
    """
    config = run.config
    divided_set = run.holder("sets").config.split.set
    if not (config.pairs.files or config.pairs.sources or divided_set):
        raise UserError(
            "stage 'pairs' needs labelled examples: set config.pairs.files to files of them, config.pairs.sources to "
            "several sources of them, or config.split.set to an evaluation set to divide, such as reqa"
        )
    for name, own in sources.each(config).items():
        with sources.naming(name):
            _check_files(own)
    if config.pairs.sources:
        source_pairs.check(config, divided_set)
    for path in teacher_inputs(config.pairs.teacher):
        teacher_scores.check_beginning(path)
    if config.pairs.in_order:
        check_by_query("config.pairs.in_order=True keeps the order of", divided_set, config.pairs.positives)
    elif labelled_groups.are_apart(config):
        what = "examples have the negatives of their page, or the scores of their record, in"
        check_by_query(what, divided_set, config.pairs.positives)


def _check_files(config: ConfigDict) -> None:
    for field in (*_WITH_TEXTS, "files", "teacher"):
        either = None if field in ("collection", "files") else False
        named = [name for name in source_paths.split(config.pairs[field]) if not hub_datasets.is_name(name)]
        source_paths.checked(f"config.pairs.{field}", named, either)
    for path in labelled_format.files(config.pairs.files):
        labelled_format.check(path, labelled_groups.settings(config))


def check_lone(config: ConfigDict) -> None:
    """Checks that pairs without a hard negative can be kept: the place of the negative has a copy of the positive.

    Raises:
      UserError: they cannot.
    """
    if config.pairs.keep_lone:
        for name, own in sources.each(config).items():
            with sources.naming(name):
                _check_lone(own)


def _check_lone(config: ConfigDict) -> None:
    recipe = recipe_of(config)
    if field := recipe.loss and recipe.loss.counts_copies(recipe.loss_options()):
        (value,) = values_of(config, [field]).values()
        raise UserError(
            f"config.pairs.keep_lone=True: config.{field}={value} would count the copy of a positive as a second one: "
            f"set config.pairs.keep_lone=False, or another config.{field}"
        )
    if every := config.mine.refresh_every:
        raise UserError(
            f"config.pairs.keep_lone=True and config.mine.refresh_every={every}: what is mined anew has no pairs "
            "without a negative; set one of the two back"
        )


def check_by_query(what: str, divided_set: str, positives: int) -> None:
    """Checks that nothing goes by query where examples stay apart.

    Args:
      what: holds of the files, in words.
      divided_set: the evaluation set that is divided, '' if none is.
      positives: those of a query that are trained on.

    Raises:
      UserError: something does.
    """
    if divided_set or positives:
        other = f"config.split.set={divided_set}" if divided_set else f"config.pairs.positives={positives}"
        raise UserError(f"{what} config.pairs.files, and {other} goes by query: set one of them back")


def _asked(sets: Path, training: Path) -> set[str]:
    """The wordings of the queries of the evaluation sets, and of those that are held out to validate on."""
    folders = [path for path in sets.iterdir() if path.is_dir()] if sets.exists() else []
    asked = {query for folder in folders for query in beir.read_queries(folder / "queries.jsonl").values()}
    if training.exists():
        divided = beir.read_judged(training)
        asked |= {divided.queries[id] for id in divided.qrels[splits.VALIDATION]}
    return set(map(splits.wording, asked))


STAGES.register(
    "pairs",
    Stage(
        write_pairs,
        check_config=(check_lone,),
        check=(
            extras.check_training,
            check_inputs,
            Run.check_vocabulary,
            guide.check,
        ),
        fields=("split", "pairs", "sets.mind_split", "train.guide", *prefixes.FIELDS),
        uses=("encode.batch_tokens",),
        reads=("prepare", "sets", "mine", "teacher"),
        files=lambda run: [
            *labelled_groups.inputs(run.config),
            *teacher_inputs(run.config.pairs.teacher),
            *guide.inputs(run),
            *run.vocabulary_inputs(),
        ],
        fetch=guide.fetch,
        writes=("pairs",),
    ),
)
