"""Batches of a run whose labelled pairs have several sources, and what is refused of these."""

import dataclasses
import logging
from pathlib import Path

import jax
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.config.fields import declared
from retrieval.data.examples import batches
from retrieval.data.examples.batches import Batches, Drawn, Sources
from retrieval.data.labelled import sources
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.recipes.recipe import recipe_of
from retrieval.recipes.source_objective import key_of
from retrieval.runs.fitting import examples
from retrieval.runs.fitting.examples import Source
from retrieval.runs.pipeline.run import Run
from retrieval.training.sharding import batch_sharding

_log = logging.getLogger(__name__)


def folder_of(pairs: Path, source: str) -> Path:
    """Where the shards of a source lie in the folder of labelled pairs."""
    return pairs / "sources" / source


def make_batches(run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh) -> Batches:
    """`examples.make_batches`; of several sources, batches of one each. An error names the source."""
    if not run.config.pairs.sources:
        return examples.make_batches(run, vocabulary, mesh)
    drawn = _drawn(run, vocabulary)
    sizes = [epoch for _, _, epoch in drawn.values()]
    weights = [source.weight for source in sources.read(run.config.pairs.sources) if source.weight is not None]
    share_S = batches.shares(sizes, weights, run.config.data.source_alpha)
    named = ", ".join(f"{name} {share:.1%}" for name, share in zip(drawn, share_S))
    _log.info("train: sources are drawn %s: %s", "by their weights" if weights else "by their sizes", named)
    lanes = {name: examples.open_lanes(own, mesh, of) for name, (own, of, _) in drawn.items()}
    keys = [key_of(own.config) for own, _, _ in drawn.values()]
    return Batches(lanes, batch_sharding(mesh), epoch=sum(sizes), sources=Sources(share_S, run.config.seed, keys))


def epoch_of(run: Run, vocabulary: Vocabulary) -> int:
    """The examples of an epoch: of all sources together."""
    if not run.config.pairs.sources:
        return examples.drawn(run, vocabulary)[1]
    return sum(epoch for _, _, epoch in _drawn(run, vocabulary).values())


def _drawn(run: Run, vocabulary: Vocabulary) -> dict[str, tuple[Run, Drawn, int]]:
    """Of each source the run with its config, what is drawn of it, and the examples of an epoch."""
    drawn = {}
    for number, (name, own) in enumerate(sources.configs_of(run.config).items()):
        of_source, folder = dataclasses.replace(run, config=own), folder_of(run.pairs, name)
        with sources.naming(name):
            drawn[name] = (of_source, *examples.drawn(of_source, vocabulary, folder, source=Source(name, number)))
    return drawn


def check(config: ConfigDict) -> None:
    """Checks that the sources of a config fit each other and what else it says."""
    listed = sources.read(config.pairs.sources)
    if not listed:
        return
    if others := [task for task, rate in config.data.rates.items() if rate and task != "pairs"]:
        way = f"set config.data.rates.{others[0]}=0"
        raise UserError(f"config.{sources.FIELD} are drawn by the task 'pairs', and alone: {way}")
    if every := config.mine.refresh_every:
        way = f"set it to 0, or config.{sources.FIELD} to nothing"
        raise UserError(f"config.mine.refresh_every={every} makes pairs anew that have no source: {way}")
    if listed[0].weight is not None and config.data.source_alpha != declared()["data.source_alpha"].default:
        why = f"draws sources by their sizes, and config.{sources.FIELD} gives them weights: leave one of the two out"
        raise UserError(f"config.data.source_alpha={config.data.source_alpha} {why}")
    configs = sources.configs_of(config)
    for source in listed:
        with sources.naming(source.name):
            _check_own(source, configs[source.name])


def _check_own(source: sources.Source, own: ConfigDict) -> None:
    loss, temperature, name = recipe_of(own).loss, sources.LOSS_KEYS["temperature"], own.train.loss
    if temperature in source.fields and not (loss and temperature in loss.options()):
        raise UserError(f"config.train.loss={name} has no temperature: leave that out")
    if loss and loss.needs_teacher and sources.LOSS_KEYS["loss"] not in source.fields:
        way = f'write loss = "{name}" into its table'
        raise UserError(f"config.train.loss={name} learns from a teacher, whose scores a source names itself: {way}")
    places = tuple(own.model.pool_from)
    if any(places) and any(field in source.fields for field in sources.PROMPT_KEYS.values()):
        why = "leaves out the tokens of one prompt, and this source has one of its own: set it to 0,0"
        raise UserError(f"config.model.pool_from={places} {why}")
