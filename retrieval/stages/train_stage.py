"""The stage `train` as others see it: what it reads, what its result depends on, and what it refuses."""

import dataclasses

from ml_collections import ConfigDict

from retrieval import files, libraries
from retrieval.config.fields import of_fields
from retrieval.data.labelled import sources
from retrieval.data.tokenizers.prefixes import Prefixes
from retrieval.errors import UserError, divisors
from retrieval.pipeline.records import is_done
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Fixed, Read, Stage
from retrieval.recipes import adapters, bert_weights, guide, initial_parameters
from retrieval.recipes.examples import abstract_batch, check_stored, draws, labelled, unlabelled
from retrieval.recipes.examples import check as check_examples
from retrieval.recipes.placement import is_stacked, make_mesh, parameters_of, shardings_of
from retrieval.recipes.recipe import abstract_model, check_chunks, check_recipe, guide_of, recipe_of
from retrieval.recipes.source_batches import check as check_sources
from retrieval.recipes.source_batches import folder_of
from retrieval.stages import (
    labelled_groups,
    mine,
    prepare,
    refresh,
    source_pairs,
    training_steps,
    training_time,
    versions,
)
from retrieval.stages.refresh_kind import REFRESHES, kind_of
from retrieval.stages.train import BAD_BATCHES, FOLLOWED, train
from retrieval.training import frozen, optimizer, sharding

_VALIDATION = ("validate_every", "validate_queries", "validate_candidates", "best")

# The stages that write labelled examples, and the field of each that names their files.
_FILES = {"pairs": "files", "spans": "questions"}


def check_data(run: Run) -> None:
    """Checks that there will be shards of what is trained on, fitting and as many as the lanes take, negatives enough,
    and what a refresh reads.
    """
    if is_done(run, "train") or not draws(run):
        return
    config, stage = run.config, recipe_of(run.config).examples_of
    given, writer = labelled(config), run.holder(stage)
    if given and stage not in writer.config.stages:
        raise UserError(
            f"task '{given[0]}' has no example, for no stage writes {stage}: add '{stage}' to config.stages and set "
            f"config.{stage}.{_FILES[stage]} or config.split.set, or set config.data.rates.{given[0]}=0"
        )
    if others := unlabelled(config):
        if not (run.prepares or run.corpus.exists()):
            raise UserError(
                f"task '{others[0]}' is drawn from a prepared corpus, and no stage prepares one: add 'prepare' to "
                f"config.stages, set config.base to a run that has it, or config.data.rates.{others[0]}=0"
            )
        _check_lanes(config.data.lanes, prepare.shards_of(run), "the corpus, config.prepare.shards")
    if given:
        # A refresh writes as many as the stage.
        _check_lanes(config.data.lanes, writer.config.split.shards, f"labelled {stage}, config.split.shards")
        mine.check_enough(run)
    if given and stage == "pairs":
        source_pairs.check_written(config, writer)
    if given and stage == "pairs" and not is_done(writer, stage):
        least = 0 if others or config.data.mixed_sources else config.train.batch_size
        theirs = sources.each(writer.config)
        for name, own in sources.each(config).items():
            with sources.naming(name):
                files_of = dataclasses.replace(writer, config=theirs[name])
                labelled_groups.check_scores(files_of, own)
                labelled_groups.check_files(files_of, own.data.negatives, least)
    elif given and stage == "pairs":
        for name, own in sources.each(config).items():
            folder = folder_of(writer.pairs, name) if name else writer.pairs
            if (folder / "stats.json").exists():
                check_stored(own, folder)
    if config.mine.refresh_every:
        kind_of(config.mine.refresh_makes).check_run(run)
    _check_guide(writer, run)


def _check_guide(writer: Run, run: Run) -> None:
    """The pairs of a base have the embeddings of the guide that this run names."""
    if not (named := guide_of(recipe_of(run.config))) or writer is run:
        return
    statistics = writer.pairs / "stats.json"
    if not statistics.exists() or files.read_json(statistics).get("guide") != guide.fingerprint(run):
        raise UserError(
            f"config.train.guide={named}: the labelled pairs of {writer.place} have not its embeddings: set it there "
            "and make them again, or add 'pairs' to config.stages"
        )


def fetch(run: Run) -> None:
    """Copies down what parameters start from, where that is on a store."""
    initial_parameters.fetch_start(run)


def check_model(run: Run) -> None:
    """Checks that devices, batches and parameters fit each other, and what the parameters start from."""
    if is_done(run, "train"):
        return
    config, mesh = run.config, make_mesh(run.config)
    abstract_batch(config, mesh)
    check_chunks(recipe_of(config), mesh.size)
    recipe_of(config).check_run(run)
    if config.mesh.rules or config.train.optimizer == "muon":
        params = adapters.with_shapes(config, parameters_of(abstract_model(config, run.vocab_size)))
        optimizer.check_matrices(config.train.optimizer, frozen.split(params)[0], is_stacked)
        shardings_of(params, config, mesh)
        sharding.check_rules(params, config.mesh.rules)
    if run.vocabulary and (config.data.query_prefix or config.data.document_prefix):
        Prefixes.of(config.data, run.load_vocabulary())  # which refuses one that leaves no room
    initial_parameters.check_start(run)
    bert_weights.check_tensors(config)
    adapters.check_start(config)
    if not config.train.epochs:  # else the steps are known when the data is
        training_time.warn_of_days(config, lambda: run.vocab_size, mesh)


def _check_lanes(lanes: int, shards: int, whose: str) -> None:
    """Lanes have equally many files: what is in a smaller lane would be drawn more often."""
    if shards % lanes:
        raise UserError(
            f"config.data.lanes={lanes} does not divide the shards of {whose}={shards}: take {divisors(lanes, shards)} "
            "lanes"
        )


def check_validation(config: ConfigDict) -> None:
    """Checks that there is something to validate checkpoints on, where that is asked for."""
    if config.loop.validate_every:
        recipe_of(config).check_validation()


def read(config: ConfigDict) -> list[str | Read]:
    """What the stage reads: the corpus, labelled examples, and what a refresh needs."""
    refreshed = refresh.needs(config.mine.refresh_makes, config.mine.refresh_every)
    return ["prepare", recipe_of(config).examples_of, *refreshed, Read("sets", loose=True)]


STAGES.register(
    "train",
    Stage(
        train,
        check_config=(
            check_sources,
            check_examples,
            check_recipe,
            of_fields(training_steps.check, "train", "loop.keep_steps", "profile.steps", "mine.refresh_every"),
            initial_parameters.check_step,
            adapters.check,
            refresh.check,
            check_validation,
        ),
        check=(
            libraries.check_training,
            Run.check_vocabulary,
            check_data,
            check_model,
        ),
        fields=(
            "seed",
            "recipe",
            "data",
            "model",
            "train",
            "encode.windows",
            "spans.early",
            sources.FIELD,
            *refresh.SETTINGS,
            *dict.fromkeys(field for kind in REFRESHES.values() for field in kind.settings),
            *(f"loop.{name}" for name in _VALIDATION),
        ),
        uses=("encode.batch_tokens", "encode.shard_size"),
        reads=read,
        files=lambda run: [*initial_parameters.train_inputs(run), *run.vocabulary_inputs()],
        fetch=fetch,
        leaves=(*FOLLOWED, BAD_BATCHES, "profile"),
        exchanged=(versions.FOLDER,),
        fixed=Fixed(("train.steps", "train.epochs", "train.minutes"), initial_parameters.decided),
        everywhere=True,
    ),
)
