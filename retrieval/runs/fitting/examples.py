"""What a run trains on: the tasks of its config, and batches of their examples."""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError, divisors, multiples
from retrieval.common.libraries import seqio
from retrieval.data import holdout
from retrieval.data.examples import batches, seqio_tasks, task_kind
from retrieval.data.examples.batches import Batches, Drawn, SourceBatch
from retrieval.data.examples.packing import Lane
from retrieval.data.examples.task_kind import TASKS, TaskData
from retrieval.data.labelled import sources
from retrieval.data.tokenizers import prefixes
from retrieval.data.tokenizers.prefixes import Prefixes
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.recipes.recipe import RECIPES, Recipe, guide_of, has_teacher, recipe_of
from retrieval.recipes.source_objective import key_of
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.training import sharding
from retrieval.training.loss_kind import LOSSES

_log = logging.getLogger(__name__)


class Source(NamedTuple):
    """A source of labelled pairs: its name, and its number among the others."""

    name: str
    number: int


def register_tasks(
    run: Run,
    vocabulary: Vocabulary,
    validation: bool = False,
    pairs: Path | None = None,
    positives: bool = False,
    rates: Mapping[str, float] | None = None,
    source: Source | None = None,
) -> tuple[str, dict[str, int]]:
    """Registers tasks; returns the name to get the dataset by, and the examples of each task's epoch.

    Args:
      validation: the tasks are over the passages that are held out of training, instead of the others.
      rates: of the tasks; by default those of the config.
      pairs: a folder of labelled pairs; by default what the stage `pairs` wrote.
      positives: whether an example has the ids of its query's known positives, as many as the lengths say.
      source: of the labelled pairs, where there are several.
    """
    config, recipe = run.config, recipe_of(run.config)
    data, stage = config.data, recipe.examples_of
    drawn_rates: Mapping[str, float] = rates or data.rates.to_dict()
    if not pairs and labelled(config):  # which may be of a base
        written = (records.details(run, stage) or {}).get("vocabulary")
        if written and written != vocabulary.fingerprint:
            what = f"tokenised with another vocabulary than {run.vocabulary} has now"
            raise UserError(f"{run.labelled(stage)}: {what}: make them anew with this one, with the stage '{stage}'")
    pairs, statistics = pairs or run.labelled(stage), run.corpus / "stats.json"
    counted = files.read_json(statistics) if run.prepares or statistics.exists() else {"tasks": {}}
    if not validation and task_kind.drawn(drawn_rates, labelled=False):
        counted = holdout.statistics_at(counted, data.held_out)
    stored = TaskData(run.corpus, counted, pairs if (pairs / "stats.json").exists() else None)
    vocabulary.require(recipe.label, *recipe.kind.needs)
    if stored.labelled:
        check_stored(config, pairs)
        if guide_of(recipe) and not files.read_json(pairs / "stats.json").get("guide"):
            what = f"made without the embeddings of config.train.guide={guide_of(recipe)}"
            raise UserError(f"{pairs}: {what}: make these pairs again with it, with the stage 'pairs'")
    return seqio_tasks.register(
        stored,
        vocabulary,
        drawn_rates,
        options=data,
        shuffle_buffer=1 if is_in_order(pairs) else data.shuffle_buffer,
        held_out=data.held_out,
        validation=validation,
        negatives=data.negatives,
        optional=_lengths(recipe, int(positives), source is not None),
        skip_empty=data.skip_empty,
        prefixes=Prefixes.of(data, vocabulary),
        label=f"_{source.name}" if source else "",
        source=source.number if source else 0,
    )


def with_batch(run: Run, vocabulary: Vocabulary, devices: int) -> Run:
    """The run with a batch of no more rows than its data has examples; whole lanes and devices have equally many."""
    config = run.config.copy_and_resolve_references()
    if config.pairs.sources or config.train.chunk_size or config.mine.refresh_every:
        return run
    total, parts = sum(register_tasks(run, vocabulary)[1].values()), math.lcm(config.data.lanes, devices)
    if not parts <= total < config.train.batch_size:
        return run
    _log.warning("train: %d examples, fewer than config.train.batch_size=%d", total, config.train.batch_size)
    config.train.batch_size = total // parts * parts
    _log.warning("train: batches have %d examples", config.train.batch_size)
    return dataclasses.replace(run, config=config)


def check_stored(config: ConfigDict, pairs: Path) -> None:
    """Checks that labelled examples that are written have the scores that the loss learns from, as `check_scores`."""
    written = files.read_json(pairs / "stats.json")
    has_scores, is_scored = written.get("has teacher", False), written.get(task_kind.SCORED, False)
    check_scores(config, has_scores, is_scored, pairs, written.get("scores"))


def check_scores(
    config: ConfigDict, has_scores: bool, is_scored: bool, whose: object, extremes: Sequence[float] | None = None
) -> None:
    """Checks that the loss learns from what labelled examples have.

    Args:
      has_scores: whether all their documents have a teacher's scores.
      is_scored: whether each is two texts and how alike they are.
      whose: the examples, for errors.
      extremes: the lowest and the highest score, where they are known.
    """
    recipe, loss = recipe_of(config), f"config.train.loss={config.train.loss}"
    if has_teacher(recipe) and not has_scores:
        raise UserError(
            f"{loss} learns from a teacher's scores, and the labelled pairs of {whose} have none: name their column by "
            "config.pairs.fields=score=COLUMN, a file by config.pairs.teacher, or put 'teacher' before 'pairs'"
        )
    if is_scored and not (recipe.loss and recipe.loss.of_scored_pairs):
        fitting = ", ".join(sorted(other for other, loss in LOSSES.items() if loss.of_scored_pairs))
        what = f"pairs of texts with a score, none of which is a right answer, and {loss} learns from right ones"
        raise UserError(f"{whose}: {what}: set it to one of {fitting}")
    limits = recipe.loss.score_limits if recipe.loss else None
    if limits and extremes and not limits[0] <= extremes[0] <= extremes[1] <= limits[1]:
        what = "scores from {:g} to {:g}, and {} takes them from {:g} to {:g}".format(*extremes, loss, *limits)
        raise UserError(f"{whose}: {what}: divide them, or take a loss of their order, cosent")


def is_in_order(pairs: Path) -> bool:
    """Whether batches have the records of a folder of labelled pairs in their order."""
    path = pairs / "stats.json"
    return path.exists() and files.read_json(path).get(task_kind.IN_ORDER, False)


def known_positives(run: Run, pairs: Path | None = None) -> int:
    """How many known positives of a query a batch has room for; 0 where no query has another one, or none is masked.

    Args:
      pairs: as `register_tasks` has it. Those that are mined anew have as much room as the run's: the shapes stay.
    """
    recipe = recipe_of(run.config)
    if not (labelled(run.config) and recipe.loss and recipe.loss.takes_positives):
        return 0
    files_there = [folder / "stats.json" for folder in {pairs or run.pairs, run.pairs}]
    most = max((files.read_json(path)["most positives"] for path in files_there if path.exists()), default=0)
    return most if most > 1 else 0


def make_batches(
    run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh, pairs: Path | None = None, version: int = 0
) -> Batches:
    """The batches of the config's tasks.

    Args:
      pairs: as `register_tasks` has it.
      version: of these pairs; each has an order of its own.
    """
    of, epoch = drawn(run, vocabulary, pairs, version)
    stage, rows = recipe_of(run.config).examples_of, recipe_of(run.config).tables
    paths = {name: (numbers, run.labelled(stage) / f"{numbers}.npy") for name, (numbers, _) in rows.items()}
    again = f"--stage={stage} makes it"
    tables = {name: (numbers, files.read_array(path, again, mapped=True)) for name, (numbers, path) in paths.items()}
    lanes = {"": open_lanes(run, mesh, of)}
    return Batches(lanes, sharding.batch_sharding(mesh), epoch=epoch, tables=tables)


def open_lanes(run: Run, mesh: jax.sharding.Mesh, of: Drawn) -> list[Lane]:
    """The lanes of what `drawn` gives."""
    return of.open_lanes(sharding.batch_sharding(mesh), recipe_of(run.config).packing())


def drawn(
    run: Run, vocabulary: Vocabulary, pairs: Path | None = None, version: int = 0, source: Source | None = None
) -> tuple[Drawn, int]:
    """What is drawn, and the examples of an epoch; else as `make_batches`.

    Raises:
      UserError: the data has fewer examples than a batch has rows, or none for a lane.
    """
    config, recipe = run.config, recipe_of(run.config)
    positives, batch_size = known_positives(run, pairs), config.train.batch_size
    task, examples = register_tasks(run, vocabulary, pairs=pairs, positives=positives > 0, source=source)
    if (total := sum(examples.values())) < batch_size:
        way = "more data or a smaller batch is needed"
        raise UserError(f"the data gives {total} examples, fewer than config.train.batch_size={batch_size}: {way}")
    seqio_tasks.check_lanes(examples, config.data.lanes, f"_{source.name}" if source else "")
    of = Drawn(
        task=task,
        lengths=_lengths(recipe, positives, source is not None),
        converter=converter_of(recipe, vocabulary, positives, source is not None),
        batch_size=batch_size,
        lanes=config.data.lanes,
        seed=config.seed + version,
        stem=f"{source.name}." if source else "",
    )
    return of, total


def converter_of(
    recipe: Recipe, vocabulary: Vocabulary, positives: int = 0, has_source: bool = False
) -> "seqio.FeatureConverter":
    """What makes rows of a batch from examples of `Recipe.lengths`, which may have the number of their source."""
    from retrieval.data.examples.seqio_classes import Converter  # a class of seqio, which takes seconds

    change = prefixes.type_change(recipe.config.data, vocabulary.sep_id)
    return Converter(recipe.framed(vocabulary), _lengths(recipe, positives, has_source), change)


def _lengths(recipe: Recipe, positives: int, has_source: bool) -> dict[str, int]:
    return recipe.lengths(positives) | ({"source": 1} if has_source else {})


def abstract_batch(
    config: ConfigDict, mesh: jax.sharding.Mesh, source: ConfigDict | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, types and shardings of the config's batches; needs no data.

    Args:
      source: the config of the source that a batch is of; else of several sources it is the largest batch.
    """
    own = source or max(sources.each(config).values(), key=lambda own: own.data.negatives)
    recipe, has_source = recipe_of(own), bool(config.pairs.sources)
    batch = batches.abstract(
        recipe.kind,
        _lengths(recipe, 0, has_source),
        batch_size=config.train.batch_size,
        lanes=config.data.lanes,
        sharding=sharding.batch_sharding(mesh),
        packing=recipe.packing(),
        tables=recipe.tables,
    )
    return SourceBatch(batch, key_of(own)) if has_source else batch


def check(config: ConfigDict) -> None:
    """Checks what the config says about batches, as far as that does not depend on data and devices."""
    for name, own in sources.each(config).items():
        with sources.naming(name):
            _check(own)


def check_shards(lanes: int, shards: int, whose: str) -> None:
    """Checks that lanes have equally many files: what is in a smaller lane would be drawn more often."""
    if shards % lanes:
        fitting = divisors(lanes, shards)
        raise UserError(f"config.data.lanes={lanes} does not divide the shards of {whose}={shards}: take {fitting}")


def _check(config: ConfigDict) -> None:
    recipe, rates = recipe_of(config), config.data.rates.to_dict()
    seqio_tasks.check_rates(rates)
    _check_kinds(config, recipe)
    batch_size, lanes = config.train.batch_size, config.data.lanes
    if batch_size % lanes:
        what = f"config.train.batch_size={batch_size} must be a multiple of config.data.lanes={lanes}"
        raise UserError(f"{what}: take {multiples(batch_size, lanes)}")
    others, named = unlabelled(config), guide_of(recipe)
    if others and (config.data.negatives or named):
        what = f"config.train.guide={named} embeds" if named else f"config.data.negatives={config.data.negatives} is of"
        way = f"set it back, or config.data.rates.{others[0]}=0"
        raise UserError(f"{what} labelled examples, and task '{others[0]}' draws from a corpus: {way}")
    recipe.packing()


def _check_kinds(config: ConfigDict, recipe: Recipe) -> None:
    """The tasks that are drawn give the kind of examples that the recipe trains on."""
    for task in (task for task, rate in config.data.rates.items() if rate):
        if (kind := TASKS[task].kind).name != recipe.kind.name:
            fitting = " or ".join(name for name, other in RECIPES.items() if other.kind.name == kind.name)
            what = f"task '{task}' gives {kind.what}, and config.recipe={config.recipe} trains on {recipe.kind.what}"
            raise UserError(f"{what}: set config.data.rates.{task}=0, or config.recipe={fitting}")


def labelled(config: ConfigDict) -> list[str]:
    """The tasks that are drawn whose records are labelled examples, which a stage such as `pairs` writes."""
    return task_kind.drawn(config.data.rates, labelled=True)


def unlabelled(config: ConfigDict) -> list[str]:
    """The tasks that are drawn whose records are of a prepared corpus."""
    return task_kind.drawn(config.data.rates, labelled=False)
