"""Batches of a run whose labelled pairs have several sources, and what is refused of these."""

import dataclasses
import logging
from pathlib import Path

import jax
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.config.fields import declared, values_of
from retrieval.data.examples import batches, seqio_tasks
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

_TASK = "pairs"
_ALPHA, _MIXED = "data.source_alpha", "data.mixed_sources"


def folder_of(pairs: Path, source: str) -> Path:
    """Where the shards of a source lie in the folder of labelled pairs."""
    return pairs / "sources" / source


def make_batches(run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh) -> Batches:
    """`examples.make_batches`; of several sources, batches of one each, or of all mixed.

    Raises:
      UserError: as that; the message names the source.
    """
    if not run.config.pairs.sources:
        return examples.make_batches(run, vocabulary, mesh)
    drawn = _drawn(run, vocabulary)
    listed, data = sources.read(run.config.pairs.sources), run.config.data
    sizes = [epoch for _, _, epoch in drawn.values()]
    weights = [source.weight for source in listed if source.weight is not None]
    share_S, epoch = batches.shares(sizes, weights, data.source_alpha), sum(sizes)
    named = ", ".join(f"{name} {share:.1%}" for name, share in zip(drawn, share_S))
    _log.info("train: sources are drawn %s: %s", "by their weights" if weights else "by their sizes", named)
    if data.mixed_sources:
        own, of_source, _ = next(iter(drawn.values()))
        rates = {of.task: share for (_, of, _), share in zip(drawn.values(), share_S.tolist())}
        mixture = of_source._replace(task=seqio_tasks.mixture(rates, "+".join(rates)), stem="")
        return examples.opened(own, mesh, mixture, epoch)
    lanes = {name: examples.open_lanes(own, mesh, of) for name, (own, of, _) in drawn.items()}
    keys = [key_of(own.config) for own, _, _ in drawn.values()]
    return Batches(lanes, batch_sharding(mesh), epoch=epoch, sources=Sources(share_S, run.config.seed, keys))


def epoch_of(run: Run, vocabulary: Vocabulary) -> int:
    """The examples of an epoch: of all sources together.

    Raises:
      UserError: as `make_batches`.
    """
    if not run.config.pairs.sources:
        return examples.drawn(run, vocabulary)[1]
    return sum(epoch for _, _, epoch in _drawn(run, vocabulary).values())


def _drawn(run: Run, vocabulary: Vocabulary) -> dict[str, tuple[Run, Drawn, int]]:
    """Of each source the run with its config, what is drawn of it, and the examples of an epoch."""
    drawn, least = {}, 1 if run.config.data.mixed_sources else run.config.train.batch_size
    for number, (name, own) in enumerate(sources.configs_of(run.config).items()):
        of_source, source = dataclasses.replace(run, config=own), Source(name, number)
        with sources.naming(name):
            folder = folder_of(run.pairs, name)
            drawn[name] = (of_source, *examples.drawn(of_source, vocabulary, folder, source=source, least=least))
    return drawn


def check(config: ConfigDict) -> None:
    """Checks that the sources of a config fit each other and what else it says.

    Raises:
      UserError: they do not, or a field that is set would be read by nobody.
    """
    listed = sources.read(config.pairs.sources)
    if not listed:
        return
    if others := [task for task, rate in config.data.rates.items() if rate and task != _TASK]:
        raise UserError(
            f"config.{sources.FIELD} are drawn by the task '{_TASK}', and alone: set config.data.rates.{others[0]}=0"
        )
    if every := config.mine.refresh_every:
        raise UserError(
            f"config.mine.refresh_every={every} makes pairs anew that have no source: set it to 0, or config."
            f"{sources.FIELD} to nothing"
        )
    if listed[0].weight is not None and config.data.source_alpha != declared()[_ALPHA].default:
        raise UserError(
            f"config.{_ALPHA}={config.data.source_alpha} draws sources by their sizes, and config.{sources.FIELD} "
            "gives them weights: leave one of the two out"
        )
    configs = sources.configs_of(config)
    for source in listed:
        with sources.naming(source.name):
            _check_own(source, configs[source.name], config)
    if config.data.mixed_sources:
        _check_mixed(configs)


def _check_own(source: sources.Source, own: ConfigDict, config: ConfigDict) -> None:
    loss, temperature = recipe_of(own).loss, sources.LOSS_KEYS["temperature"]
    if temperature in source.fields and not (loss and temperature in loss.options()):
        raise UserError(f"config.train.loss={own.train.loss} has no temperature: leave that out")
    if loss and loss.needs_teacher and sources.LOSS_KEYS["loss"] not in source.fields:
        raise UserError(
            f"config.train.loss={own.train.loss} learns from a teacher, whose scores a source gets that says so: "
            f'write loss = "{own.train.loss}" into its table'
        )
    prompts = {field for field in sources.PROMPT_KEYS.values() if field in source.fields}
    if prompts and any(config.model.pool_from):
        raise UserError(
            f"config.model.pool_from={tuple(config.model.pool_from)} leaves out the tokens of one prompt, and this "
            "source has one of its own: set config.model.pool_from=0,0, or give all sources that of config.data"
        )


def _check_mixed(configs: dict[str, ConfigDict]) -> None:
    """Checks that a batch can have examples of all sources: they have one shape, and one loss."""
    (first, one), *others = configs.items()
    for name, own in others:
        for field in (*sources.LOSS_KEYS.values(), "data.negatives"):
            values = [values_of(config, [field])[field] for config in (one, own)]
            if values[0] != values[1]:
                raise UserError(
                    f"config.{_MIXED}=True puts sources into one batch, and config.{field} is {values[0]} in '{first}' "
                    f"and {values[1]} in '{name}': give both the same, or set config.{_MIXED}=False"
                )
    if getattr(recipe_of(one).loss, "log_q", False):
        raise UserError(
            f"config.{_MIXED}=True: how often all sources together draw a document is not counted: set "
            "config.train.log_q=False"
        )
