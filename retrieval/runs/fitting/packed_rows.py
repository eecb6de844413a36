"""The shares of `data.pack` that a run's own data needs, where `data.pack.auto` asks for them."""

import dataclasses
import logging

from ml_collections import ConfigDict

from retrieval.common.errors import multiples, next_to
from retrieval.data.examples.packing import choose_rows
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.recipes.recipe import Recipe, recipe_of
from retrieval.runs.fitting import examples
from retrieval.runs.pipeline.run import Run

_log = logging.getLogger(__name__)

_SAMPLE = 2048  # examples at most; no more than the lane has
_LEAST = 256  # examples of a lane; fewer don't tell what the other lanes need, whose texts may be longer


def with_rows(run: Run, vocabulary: Vocabulary, devices: int) -> Run:
    """The run with the shares that fit its data.

    They stay as they are where they are set by hand, and 0 where packing saves too little or does not go with other
    settings: examples in the order of files, pairs that are mined anew (nobody knows their lengths yet), lanes of few
    examples or that the devices do not divide, chunks of parts of a lane. The log says why.
    """
    config, recipe = run.config.copy_and_resolve_references(), recipe_of(run.config)
    data, pack, sides = config.data, config.data.pack, set(recipe.kind.sides.values())
    if not pack.auto or any(pack[side] for side in sides):
        return run
    if reason := _refusal(run, recipe):
        _log.info("train: a text per row, for %s", reason)
        return run
    lengths = {field: (data[f"{side}_length"], pack[f"{side}_row"]) for field, side in recipe.kind.sides.items()}
    for side in sides:
        pack.update({side: 1.0, f"{side}_row": data[f"{side}_length"]})
    packing = recipe_of(config).packing()
    assert packing, "its shares are 1"
    drawn, epoch = examples.drawn(run, vocabulary)
    if epoch < _LEAST * data.lanes:
        _log.info("train: a text per row; %d examples for %d lanes are too few to choose rows by", epoch, data.lanes)
        return run
    count = max(8, min(_SAMPLE, epoch // data.lanes) // packing.examples)  # batches
    chosen = choose_rows(packing, lengths, drawn.first(count), recipe.places)
    if not chosen:
        _log.info("train: a text per row, for packed rows would save too little")
        return run
    if reason := _misfit(config, devices):
        _log.warning("train: a text per row, though config.data.pack.auto would pack them: %s", reason)
        return run
    for field, side in recipe.kind.sides.items():
        rows, plain = chosen.texts[field], packing.texts[field]
        share = (rows.count - 0.5) * rows.length / (plain.count * plain.length)  # is rounded up to whole rows
        pack.update({side: share, f"{side}_row": rows.length})
    for field, rows in chosen.texts.items():
        texts = packing.texts[field].count
        _log.info("train: %d texts of '%s' are packed in %d rows of %d", texts, field, rows.count, rows.length)
    return dataclasses.replace(run, config=config)


def _refusal(run: Run, recipe: Recipe) -> str:
    """Why no rows can be chosen, whatever the data; empty where they can."""
    if not recipe.kind.sides:
        return f"{recipe.label} takes no packed texts"
    if run.config.pairs.sources:
        return "the texts of several sources are of several lengths"
    if run.config.mine.refresh_every:
        return "nobody knows the lengths of pairs that are mined anew"
    return "batches have the examples in their order" if examples.is_in_order(run.labelled(recipe.examples_of)) else ""


def _misfit(config: ConfigDict, devices: int) -> str:
    """The setting that packed rows do not go with, of a config that has them; empty where there is none."""
    lanes, size, sizes = config.data.lanes, config.train.chunk_size, recipe_of(config).chunk_sizes(devices)
    if lanes % devices:
        return f"config.data.lanes={lanes} is no multiple of the {devices} devices: take {multiples(lanes, devices)}"
    if size and size not in sizes:
        return f"config.train.chunk_size={size} is not of whole lanes on each device: take {next_to(size, sizes)}"
    return ""
