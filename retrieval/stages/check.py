"""What can be known to fail is said before a run begins: no hour of `prepare` is lost on a typo."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from retrieval import files
from retrieval.config import experiment
from retrieval.data.corpora import source_paths
from retrieval.errors import UserError, divisors, unknown_name
from retrieval.pipeline import downloads, order
from retrieval.pipeline.records import is_current, is_done
from retrieval.pipeline.run import Run, kept_config
from retrieval.pipeline.stage import STAGES
from retrieval.recipes import bert_weights, examples, initial_parameters
from retrieval.recipes.placement import make_mesh, parameters_of, shardings_of
from retrieval.recipes.recipe import abstract_model, recipe_of
from retrieval.runtime import hosts, mirror
from retrieval.runtime.store import is_url
from retrieval.stages import (
    hard_negatives,
    mine,
    overrides,
    pairs,
    plan,
    prepare,
    sets,
)
from retrieval.training import sharding

CONFIG = "config.json"

# Stages that do nothing without a vocabulary.
_TOKENISING = {"pairs", "train", "encode", "export"}


def check(run: Run, names: Sequence[str], overridden: Collection[str] = ()) -> None:
    """Checks the config, the folders, the files and the devices that some stages of a run need, in a few seconds.

    Args:
      overridden: the fields that were set in the shell.

    Raises:
      UserError: something is missing, or does not fit.
    """
    experiment.check(run.config)
    for name in (*run.config.stages, *names):
        if "," in name:
            several = tuple(name.split(","))
            raise UserError(f'config.stages={name} is one text; a tuple of them is needed: --config.stages="{several}"')
        if name not in STAGES:
            raise unknown_name("stage", name, STAGES)
    if not names:
        raise UserError("config.stages is empty: name the stages to run, such as --stage=prepare,sets,train")
    _check_folders(run)
    if "mine" in names:
        mine.check_index(run)
    order.check(run, names)
    overrides.check(run, names, overridden)
    _check_files(run, names)
    check_combinations(run.config, names)
    if hosts.count() > 1:
        _check_alone(run, names)
    downloads.bring(run, names)  # which may take long; what is to come reads more than configs and records
    for name in names:
        STAGES[name].check(run)
    if not run.prepares:
        _check_vocabulary(run, names)
    if "train" in names and not is_done(run, "train"):
        _check_training(run)
    if {"encode", "search", "export", "similarity"} & set(names):
        initial_parameters.check_vocabulary(run, run.holder("train").folder, "config.base")


def _check_folders(run: Run) -> None:
    """The work directory can be made and written to, and it and those that it stands on have whole configs."""
    if strange := set("*?[") & set(str(run.folder)):
        raise UserError(
            f"--workdir={run.folder}: '{min(strange)}' stands for other characters where files are looked for; name a "
            "folder without it"
        )
    place = run.folder.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise UserError(f"--workdir={run.folder}: {place} is a file, where a folder belongs; use another --workdir")
    if not os.access(place, os.W_OK):
        raise UserError(
            f"--workdir={run.folder}: no permission to write to {place}; use another --workdir, or change its mode"
        )
    _check_config(run.folder, "--workdir")
    if run.config.base:
        _check_config(mirror.local(run.config.base), "config.base")
    start = run.config.train.init_from
    if start and not bert_weights.folders(run.config):
        _check_config(mirror.local(start), "config.train.init_from")
    for base in run.chain[1:]:
        _check_config(base.folder, "config.base")
    if hosts.count() > 1:
        _check_pod(run)


def _check_pod(run: Run) -> None:
    """Every host can read what the run stands on: what is on a store is copied to the disk of one."""
    places = [("config.base", holder.config.get("base")) for holder in run.chain]
    for field, place in [*places, ("config.train.init_from", run.config.train.init_from)]:
        if place and is_url(place):
            raise UserError(
                f"{field}={place}: {hosts.count()} hosts have a disk each; name a folder on a disk that all of them "
                "share, such as the bucket mounted on each (gcsfuse, for gs://)"
            )


def _check_alone(run: Run, names: Sequence[str]) -> None:
    """No stage that the first host does alone reads a checkpoint: that waits for all hosts, and they for the first."""
    for name in names:
        stage = STAGES[name]
        reads = "train" in (*stage.needs, *stage.also(run.config), *stage.wants)
        if reads and not stage.everywhere and (stage.always or not is_current(run, name)):
            raise UserError(
                f"stage '{name}' is the first host's alone and reads a checkpoint, which {hosts.count()} hosts can do "
                f"only together: run it on one of them, without --multihost: --stage={name}"
            )


def _check_config(folder: Path, role: str) -> None:
    """The config of a work directory, where there is one, can be read."""
    path = folder / CONFIG
    if not path.exists():
        return
    remedy = f"put back the file that the run wrote, or name another folder in {role}"
    try:
        value = files.read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {remedy}") from error
    if not isinstance(value, dict) or not isinstance(value.get("stages"), list):
        raise UserError(f"{path}: not the config of a run; {remedy}")
    if "recipe" not in value:
        raise UserError(f"{path}: config.recipe is missing, for the run is of an older version; make it again")


def _check_files(run: Run, names: Sequence[str]) -> None:
    """What the stages read from outside is there, and of the right kind."""
    prepares = "prepare" in names and not is_done(run, "prepare")
    if "prepare" in names:
        prepare.check(run.config, with_files=prepares)
    if "sets" in names:
        sets.check(run.config, run.prepares)
        if prepares:  # some seconds now, rather than an error after hours
            for form, value in sets.formats(run.config):
                form.preview(value)
    if "pairs" in names:
        pairs.check(run.config, run.holder("sets").config.split.set)
    for name in names:
        STAGES[name].inputs(run)


def _check_vocabulary(run: Run, names: Sequence[str]) -> None:
    """A run without a prepared corpus has another vocabulary where its stages need one, and that can be read."""
    if run.vocabulary or set(names) & _TOKENISING:
        source_paths.checked("config.vocab", source_paths.split(str(run.vocabulary or "")))
        run.load_vocabulary()


def _check_training(run: Run) -> None:
    """Data, devices and parameters fit each other."""
    config = run.config
    mesh = make_mesh(config)
    examples.abstract_batch(config, mesh)
    recipe_of(config).check_chunks(mesh.size)
    if config.mesh.rules:
        model = abstract_model(config, plan.vocab_size(run))
        shardings_of(parameters_of(model), config, mesh)
        sharding.check_rules(parameters_of(model), config.mesh.rules)
    _check_shards(run)
    initial_parameters.check_start(run)
    bert_weights.check_tensors(config)


def _check_shards(run: Run) -> None:
    config, corpus = run.config, run.holder("prepare").config
    labelled = examples.labelled(config)
    if labelled and "pairs" not in run.holder("pairs").config.stages:
        raise UserError(
            f"task '{labelled[0]}' has no example, for no stage writes pairs: add 'pairs' to config.stages and set "
            f"config.pairs.files or config.split.set, or set config.data.rates.{labelled[0]}=0"
        )
    others = examples.unlabelled(config)
    if others and not (run.prepares or run.corpus.exists()):
        raise UserError(
            f"task '{others[0]}' is drawn from a prepared corpus, and no stage prepares one: add 'prepare' to "
            f"config.stages, set config.base to a run that has it, or config.data.rates.{others[0]}=0"
        )
    if others:
        _check_lanes(config.data.lanes, corpus.prepare.shards, "the corpus, config.prepare.shards")
    if labelled:  # a refresh writes as many as the stage
        _check_lanes(config.data.lanes, run.holder("pairs").config.split.shards, "labelled pairs, config.split.shards")
        _check_negatives(run)


def _check_negatives(run: Run) -> None:
    """What this run or a base mines for the training questions of a set is enough for a batch."""
    holder = run.holder("pairs")
    miner = holder.holder("mine")
    if "mine" in miner.config.stages and holder.holder("sets").config.split.set:
        hard_negatives.check_drawn(run.config, miner.config, "" if miner.folder == run.folder else miner.place)


def _check_lanes(lanes: int, shards: int, whose: str) -> None:
    """Lanes have equally many files: what is in a smaller lane would be drawn more often."""
    if shards % lanes:
        raise UserError(
            f"config.data.lanes={lanes} does not divide the shards of {whose}={shards}: take {divisors(lanes, shards)} "
            "lanes"
        )


def check_combinations(config: ConfigDict, stages: Collection[str]) -> None:
    """Checks that the fields which some stages read fit each other.

    Raises:
      UserError: they do not.
    """
    for name in stages:
        STAGES[name].check_settings(config)


def read_config(folder: Path) -> ConfigDict:
    """The config that a work directory keeps, with a value that it may have in every field.

    Raises:
      UserError: it is not whole, or not one of this version.
    """
    _check_config(folder, "--workdir")
    try:
        config = kept_config(folder)
        experiment.check(config)
    except (UserError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{folder / CONFIG}: {error}") from error
    return config
