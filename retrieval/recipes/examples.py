"""What a run trains and validates on: the config's tasks, batches of their examples, and labelled questions."""

import math
from collections.abc import Sequence
from pathlib import Path

import jax
import seqio
from ml_collections import ConfigDict

from retrieval import files
from retrieval.data.examples import batches, features, tasks
from retrieval.data.examples.batches import Batches
from retrieval.data.examples.packing import Packing, Rows, rows_for
from retrieval.data.sets import beir, splits
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError, multiples, next_to
from retrieval.pipeline import records
from retrieval.pipeline.run import Run
from retrieval.recipes import objective
from retrieval.recipes import towers as models
from retrieval.training import sharding


def register_tasks(
    run: Run, vocabulary: Vocabulary, validation: bool = False, pairs: Path | None = None, positives: bool = False
) -> tuple[str, dict[str, int]]:
    """Registers the config's tasks; returns the name to get the dataset by, and the examples of each task's epoch.

    Args:
      validation: the tasks are over the passages that are held out of training, instead of the others.
      pairs: a folder of labelled pairs; by default what the stage `pairs` wrote.
      positives: as `tasks.register` has it.

    Raises:
      UserError: as `tasks.register`, or that stage had another vocabulary.
    """
    config = run.config
    if not pairs and config.data.rates.pairs:
        _check_vocabulary(run, vocabulary)
    pairs, statistics = pairs or run.pairs, run.corpus / "stats.json"
    return tasks.register(
        run.corpus,
        vocabulary,
        files.read_json(statistics) if run.prepares or statistics.exists() else {"tasks": {}},
        config.data.rates.to_dict(),
        labelled=pairs if (pairs / "stats.json").exists() else None,
        ict_removal=config.data.ict_removal,
        whole_word=config.data.whole_word,
        shuffle_buffer=config.data.shuffle_buffer,
        held_out=config.data.held_out,
        validation=validation,
        negatives=config.data.negatives,
        positives=positives,
    )


def known_positives(run: Run, pairs: Path | None = None) -> int:
    """How many known positives of a query a batch has room for; 0 where no query has another one, or none is masked.

    Pairs of an older version do not tell, and their batches are as they were.

    Args:
      pairs: as `register_tasks` has it. Those that are mined anew have as much room as the run's: the shapes stay.
    """
    train = run.config.train
    if not run.config.data.rates.pairs or train.loss != objective.IN_BATCH or train.other_positives == objective.PUSHED:
        return 0
    files_there = [folder / "stats.json" for folder in {pairs or run.pairs, run.pairs}]
    counts = [files.read_json(path).get("most positives", 0) for path in files_there if path.exists()]
    return max(counts) if counts and min(counts) > 0 and max(counts) > 1 else 0


def _check_vocabulary(run: Run, vocabulary: Vocabulary) -> None:
    """The labelled pairs are tokenised with the run's vocabulary: they may be older, or of a base with another."""
    written = (records.details(run, "pairs") or {}).get("vocabulary")
    if written and written != vocabulary.fingerprint:
        raise UserError(
            f"{run.pairs}: tokenised with another vocabulary than {run.vocabulary} has now: make them anew with this "
            "one, with the stage 'pairs'"
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
    config = run.config
    positives = known_positives(run, pairs)
    task, examples = register_tasks(run, vocabulary, pairs=pairs, positives=positives > 0)
    if (total := sum(examples.values())) < config.train.batch_size:
        raise UserError(
            f"the data gives {total} examples, fewer than config.train.batch_size={config.train.batch_size}: "
            "more data or a smaller batch is needed"
        )
    tasks.check_lanes(examples, config.data.lanes, config.data.held_out)
    return Batches(
        task,
        *_features(config, vocabulary.sep_id, positives),
        batch_size=config.train.batch_size,
        lanes=config.data.lanes,
        seed=config.seed + version,
        sharding=sharding.batch_sharding(mesh),
        packing=packing(config),
    )


def abstract_batch(config: ConfigDict, mesh: jax.sharding.Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, types and shardings of the config's batches; needs no data.

    Raises:
      UserError: the mesh does not divide the batch.
    """
    any_id = 0  # no shape depends on what [SEP] is
    return batches.abstract(
        *_features(config, any_id),
        batch_size=config.train.batch_size,
        lanes=config.data.lanes,
        sharding=sharding.batch_sharding(mesh),
        packing=packing(config),
    )


def check(config: ConfigDict) -> None:
    """Checks what the config says about batches, as far as that does not depend on data and devices.

    Raises:
      UserError: lanes do not divide it, texts cannot be packed so, an example has no negatives, tasks do not mix.
    """
    tasks.check_rates(config.data.rates.to_dict())
    batch_size, lanes = config.train.batch_size, config.data.lanes
    if batch_size % lanes:
        raise UserError(
            f"config.train.batch_size={batch_size} must be a multiple of config.data.lanes={lanes}: take "
            f"{multiples(batch_size, lanes)}"
        )
    others = unlabelled(config)
    if config.data.negatives and others:
        raise UserError(
            f"config.data.negatives={config.data.negatives}: only labelled examples have hard negatives: set it to 0, "
            f"or train on them alone, config.data.rates.pairs=1 and config.data.rates.{others[0]}=0"
        )
    if batch_size == 1 and not models.is_mlm(config) and not config.data.negatives:
        raise UserError("config.train.batch_size=1: negatives are the other examples of a batch: take at least 2")
    packing(config)


def unlabelled(config: ConfigDict) -> list[str]:
    """The tasks that are drawn but that of labelled pairs."""
    return [task for task, rate in config.data.rates.items() if rate and task != tasks.LABELLED]


def check_chunks(config: ConfigDict, devices: int) -> None:
    """Checks what the towers take at a time.

    Raises:
      UserError: chunks do not divide the batch, or devices and packed lanes not the chunks; or there are no towers.
    """
    size, rows, sizes = config.train.chunk_size, config.train.batch_size, chunk_sizes(config, devices)
    if not size:
        return
    if models.is_mlm(config):
        raise UserError(
            f"config.train.chunk_size={size}: an MLM takes the whole batch at a time: set 0, and for less memory a "
            "smaller config.train.batch_size with config.train.accumulation"
        )
    if rows % size:
        raise UserError(
            f"config.train.chunk_size={size} does not divide config.train.batch_size={rows}: take "
            f"{next_to(size, sizes)}"
        )
    if size not in sizes:
        lane = f" times the {sizes[0] // devices} examples that a lane packs" if sizes[0] > devices else ""
        raise UserError(
            f"config.train.chunk_size={size} must be a multiple of the number of devices, {devices}{lane}: take "
            f"{next_to(size, sizes)}"
        )


def chunk_sizes(config: ConfigDict, devices: int) -> list[int]:
    """The examples that the towers can take at a time, up to the whole batch: as many for every device, in whole lanes
    where these are packed."""
    rows, packed = config.train.batch_size, packing(config)
    unit = devices * (packed.examples if packed else 1)
    return [size for size in range(unit, rows + 1, unit) if rows % size == 0]


def feature_lengths(config: ConfigDict, positives: int = 0) -> dict[str, int]:
    """The lengths of the fields of an example, before anything is packed; `positives` as `known_positives` says."""
    data = config.data
    if models.is_mlm(config):
        return features.mlm_lengths(data.document_length)
    return features.pair_lengths(data.query_length, data.document_length, data.negatives, positives)


def packing(config: ConfigDict) -> Packing | None:
    """How the config packs the texts of a lane; None where it has one text per row.

    Raises:
      UserError: one side would be packed without the other, or a share or a row length does not fit.
    """
    pack, lengths = config.data.pack, feature_lengths(config)
    sides = {"text": "document"} if models.is_mlm(config) else {"query": "query", "document": "document"}
    if not any(pack[side] for side in sides.values()):
        return None
    examples = config.train.batch_size // config.data.lanes
    counts = {"document": examples * (1 + config.data.negatives)}
    texts = {
        field: rows_for(
            counts.get(field, examples), lengths[field], pack[side], pack[f"{side}_row"], f"config.data.pack.{side}"
        )
        for field, side in sides.items()
    }
    if not models.is_mlm(config):
        return Packing(examples, texts)
    # Places for as many masked tokens as texts of full length have in those rows.
    rows = texts["text"]
    places = math.ceil(rows.count * rows.length * lengths["positions"] / lengths["text"])
    return Packing(examples, texts, Rows(1, places, rows.setting))


def _features(config: ConfigDict, sep_id: int, positives: int = 0) -> tuple[dict[str, int], seqio.FeatureConverter]:
    """What the config's tasks give: the lengths of their features, and what makes rows of them."""
    is_mlm = models.is_mlm(config)
    converter = features.MlmConverter() if is_mlm else features.TwoTowerConverter(sep_id, positives > 0)
    return feature_lengths(config, positives), converter


def split_set(run: Run) -> str | None:
    """The set whose questions were divided for fine-tuning."""
    return run.holder("sets").config.split.set if run.training.exists() else None


def divided_set(run: Run) -> str:
    """`split_set` of a run that has one.

    Raises:
      UserError: no questions were divided.
    """
    if (name := split_set(run)) is None:
        raise UserError(f"{run.training}: no training questions: set config.split.set, and --stage=split")
    return name


def validation_folder(run: Run) -> Path:
    """The BEIR folder of the questions that are held out of the training ones: of a set, or of labelled files.

    Raises:
      UserError: there is none.
    """
    for folder in (run.training, run.held_out_pairs):
        if folder.exists():
            return folder
    raise UserError(
        f"{run.pairs} holds no query out to validate on, which takes two at least: set config.loop.validate_every=0"
    )


def validation(run: Run, ids: Sequence[str] = ()) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Questions that are held out of training: those of `ids`, or the first, as many as validate a checkpoint."""
    training = beir.read_judged(validation_folder(run))
    chosen = ids or list(training.qrels[splits.VALIDATION])[: run.config.loop.validate_queries]
    return {id: training.queries[id] for id in chosen}, {id: training.qrels[splits.VALIDATION][id] for id in chosen}
