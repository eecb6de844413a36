"""What a run trains on: the tasks of its config, and batches of their examples."""

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
from retrieval.data.examples.task_kind import TASKS, Stored
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


class Source(NamedTuple):
    """A source of labelled pairs: its name, and its number among the others."""

    name: str
    number: int

    @property
    def label(self) -> str:
        """What the names of its tasks end in."""
        return f"_{self.name}"


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
    config, stage = run.config, recipe_of(run.config).examples_of
    drawn_rates: Mapping[str, float] = rates or config.data.rates.to_dict()
    before = Prefixes.of(config.data, vocabulary)
    if not pairs and labelled(config):
        _check_vocabulary(run, vocabulary, stage)
    pairs, statistics = pairs or run.labelled(stage), run.corpus / "stats.json"
    counted = files.read_json(statistics) if run.prepares or statistics.exists() else {"tasks": {}}
    if task_kind.drawn(drawn_rates, labelled=False):
        counted = counted if validation else holdout.statistics_at(counted, config.data.held_out)
    stored = Stored(run.corpus, counted, pairs if (pairs / "stats.json").exists() else None)
    recipe = recipe_of(config)
    vocabulary.require(recipe.label, *recipe.kind.needs)
    if stored.labelled:
        check_stored(config, stored.labelled)
    _check_guide(recipe, stored.labelled)
    return seqio_tasks.register(
        stored,
        vocabulary,
        drawn_rates,
        options=config.data,
        shuffle_buffer=1 if is_in_order(pairs) else config.data.shuffle_buffer,
        held_out=config.data.held_out,
        validation=validation,
        negatives=config.data.negatives,
        optional=_lengths(recipe, int(positives), source is not None),
        skip_empty=config.data.skip_empty,
        prefixes=before,
        label=source.label if source else "",
        source=source.number if source else 0,
    )


def check_stored(config: ConfigDict, pairs: Path) -> None:
    """Checks that labelled examples that are written have the scores that the loss learns from, as `check_scores`."""
    written = files.read_json(pairs / "stats.json")
    check_scores(
        config, written.get("has teacher", False), written.get(task_kind.SCORED, False), pairs, written.get("scores")
    )


def check_scores(
    config: ConfigDict, has_scores: bool, is_scored: bool, whose: object, extremes: Sequence[float] | None = None
) -> None:
    """Checks that the loss learns from what labelled examples have.

    Args:
      has_scores: whether all their documents have a teacher's scores.
      is_scored: whether each is two texts and how alike they are.
      whose: the examples, for errors.
      extremes: the lowest and the highest score, where they are known.

    Raises:
      UserError: they have no scores, or nothing else, and the loss learns from what they lack; or scores are outside
        what it takes.
    """
    recipe, name = recipe_of(config), config.train.loss
    if has_teacher(recipe) and not has_scores:
        raise UserError(
            f"config.train.loss={name} learns from a teacher's scores, and the labelled pairs of {whose} have none: "
            "name their column by config.pairs.fields=score=COLUMN, set config.pairs.teacher to a file of them, or put "
            "the stage 'teacher' before 'pairs'"
        )
    if is_scored and not (recipe.loss and recipe.loss.of_scored_pairs):
        fitting = ", ".join(sorted(other for other, loss in LOSSES.items() if loss.of_scored_pairs))
        raise UserError(
            f"{whose}: pairs of texts with a score, none of which is a right answer, and {recipe.label} learns from "
            f"right answers with config.train.loss={name}: set it to one of {fitting}"
        )
    limits = recipe.loss.score_limits if recipe.loss else None
    if limits and extremes and not limits[0] <= extremes[0] <= extremes[1] <= limits[1]:
        raise UserError(
            f"{whose}: scores from {extremes[0]:g} to {extremes[1]:g}, and config.train.loss={name} takes them from "
            f"{limits[0]:g} to {limits[1]:g}: divide them, or take a loss of their order, cosent"
        )


def is_in_order(pairs: Path) -> bool:
    """Whether batches have the records of a folder of labelled pairs in their order."""
    path = pairs / "stats.json"
    return path.exists() and files.read_json(path).get(task_kind.IN_ORDER, False)


def _check_guide(recipe: Recipe, labelled: Path | None) -> None:
    if guide_of(recipe) and labelled and not files.read_json(labelled / "stats.json").get("guide"):
        raise UserError(
            f"{labelled}: made without the embeddings of config.train.guide={guide_of(recipe)}: make these pairs again "
            "with it, with the stage 'pairs'"
        )


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


def _check_vocabulary(run: Run, vocabulary: Vocabulary, stage: str) -> None:
    """The labelled examples of a stage are tokenised with the run's vocabulary: they may be of a base."""
    written = (records.details(run, stage) or {}).get("vocabulary")
    if written and written != vocabulary.fingerprint:
        raise UserError(
            f"{run.labelled(stage)}: tokenised with another vocabulary than {run.vocabulary} has now: make them anew "
            f"with this one, with the stage '{stage}'"
        )


def make_batches(
    run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh, pairs: Path | None = None, version: int = 0
) -> Batches:
    """The batches of the config's tasks.

    Args:
      pairs: as `register_tasks` has it.
      version: of these pairs; each has an order of its own.

    Raises:
      UserError: the data has fewer examples than a batch has rows, or none for a lane.
    """
    return opened(run, mesh, *drawn(run, vocabulary, pairs, version))


def open_lanes(run: Run, mesh: jax.sharding.Mesh, of: Drawn) -> list[Lane]:
    """The lanes of what `drawn` gives."""
    return of.open_lanes(sharding.batch_sharding(mesh), recipe_of(run.config).packing())


def opened(run: Run, mesh: jax.sharding.Mesh, of: Drawn, epoch: int) -> Batches:
    """Batches of what `drawn` gives."""
    recipe = recipe_of(run.config)
    folder = run.labelled(recipe.examples_of)
    tables = {
        name: (
            numbers,
            files.read_array(folder / f"{numbers}.npy", f"--stage={recipe.examples_of} makes it", mapped=True),
        )
        for name, (numbers, _) in recipe.tables.items()
    }
    lanes = {"": open_lanes(run, mesh, of)}
    return Batches(lanes, sharding.batch_sharding(mesh), epoch=epoch, tables=tables)


def drawn(
    run: Run,
    vocabulary: Vocabulary,
    pairs: Path | None = None,
    version: int = 0,
    source: Source | None = None,
    least: int = 0,
) -> tuple[Drawn, int]:
    """What is drawn, and the examples of an epoch; else as `make_batches`.

    Args:
      least: examples that there must be; 0: as many as a batch has rows.
    """
    config, recipe = run.config, recipe_of(run.config)
    positives = known_positives(run, pairs)
    task, examples = register_tasks(run, vocabulary, pairs=pairs, positives=positives > 0, source=source)
    if (total := sum(examples.values())) < (least or config.train.batch_size):
        raise UserError(
            f"the data gives {total} examples, fewer than config.train.batch_size={config.train.batch_size}: "
            "more data or a smaller batch is needed"
        )
    seqio_tasks.check_lanes(examples, config.data.lanes, source.label if source else "")
    of = Drawn(
        task=task,
        lengths=_lengths(recipe, positives, source is not None),
        converter=converter_of(recipe, vocabulary, positives, source is not None),
        batch_size=config.train.batch_size,
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


def abstract_batch(config: ConfigDict, mesh: jax.sharding.Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, types and shardings of the config's batches; needs no data. Of several sources it is the largest batch.

    Raises:
      UserError: the mesh does not divide the batch.
    """
    own = max(sources.each(config).values(), key=lambda own: own.data.negatives)
    return _abstract(config, own, mesh)


def abstract_batches(config: ConfigDict, mesh: jax.sharding.Mesh) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """As `abstract_batch`, of each source."""
    return [_abstract(config, own, mesh) for own in sources.each(config).values()]


def _abstract(config: ConfigDict, own: ConfigDict, mesh: jax.sharding.Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """A batch of the source that has the config `own`, which is the config itself where there is no source."""
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
    return SourceBatch(batch, key_of(own)) if has_source and not config.data.mixed_sources else batch


def check(config: ConfigDict) -> None:
    """Checks what the config says about batches, as far as that does not depend on data and devices.

    Raises:
      UserError: lanes do not divide it, texts cannot be packed so, an example has no negatives, tasks do not mix.
    """
    for name, own in sources.each(config).items():
        with sources.naming(name):
            _check(own)


def check_shards(lanes: int, shards: int, whose: str) -> None:
    """Checks that lanes have equally many files: what is in a smaller lane would be drawn more often."""
    if shards % lanes:
        raise UserError(
            f"config.data.lanes={lanes} does not divide the shards of {whose}={shards}: take {divisors(lanes, shards)} "
            "lanes"
        )


def _check(config: ConfigDict) -> None:
    recipe = recipe_of(config)
    seqio_tasks.check_rates(config.data.rates.to_dict())
    _check_kinds(config, recipe)
    batch_size, lanes = config.train.batch_size, config.data.lanes
    if batch_size % lanes:
        raise UserError(
            f"config.train.batch_size={batch_size} must be a multiple of config.data.lanes={lanes}: take "
            f"{multiples(batch_size, lanes)}"
        )
    if config.data.negatives and (others := unlabelled(config)):
        fitting = [name for name, task in TASKS.items() if task.is_labelled and task.kind.name == recipe.kind.name]
        alone = f"config.data.rates.{' or '.join(fitting)}=1 and config.data.rates.{others[0]}=0"
        raise UserError(
            f"config.data.negatives={config.data.negatives}: only labelled examples have hard negatives: set it to 0"
            + (f", or train on them alone, {alone}" if fitting else "")
        )
    if (named := guide_of(recipe)) and (others := unlabelled(config)):
        raise UserError(
            f"config.train.guide={named} embeds labelled examples, and task '{others[0]}' draws from a corpus: set "
            f"config.data.rates.{others[0]}=0, or config.train.guide=''"
        )
    recipe.packing()


def _check_kinds(config: ConfigDict, recipe: Recipe) -> None:
    """The tasks that are drawn give the kind of examples that the recipe trains on."""
    tasks = [task for task, rate in config.data.rates.items() if rate]
    for task in tasks:
        if (kind := TASKS[task].kind).name != recipe.kind.name:
            fitting = [name for name, other in RECIPES.items() if other.kind.name == kind.name]
            others = [f"config.data.rates.{name}=0" for name in tasks if TASKS[name].kind.name != kind.name]
            switch = " and ".join([f"config.recipe={' or '.join(fitting)}", *others])
            raise UserError(
                f"task '{task}' gives {kind.what}, and config.recipe={config.recipe} trains on "
                f"{recipe.kind.what}: set config.data.rates.{task}=0, or {switch}"
            )


def labelled(config: ConfigDict) -> list[str]:
    """The tasks that are drawn whose records are labelled examples, which a stage such as `pairs` writes."""
    return task_kind.drawn(config.data.rates, labelled=True)


def unlabelled(config: ConfigDict) -> list[str]:
    """The tasks that are drawn whose records are of a prepared corpus."""
    return task_kind.drawn(config.data.rates, labelled=False)
