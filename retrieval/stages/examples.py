"""What a run trains and validates on: the config's tasks, batches of their examples, and labelled questions."""

import jax
import seqio
from ml_collections import ConfigDict

from retrieval import files
from retrieval.data import batches, beir, features, splits, tasks
from retrieval.data.batches import Batches
from retrieval.data.vocab import WordPiece
from retrieval.errors import UserError
from retrieval.stages import model as models
from retrieval.stages.run import Run
from retrieval.training import sharding


def register_tasks(run: Run, vocabulary: WordPiece, validation: bool = False) -> tuple[str, int]:
    """Registers the config's tasks; returns the name to get the dataset by, and the examples of an epoch.

    Args:
      validation: the tasks are over the passages that are held out of training, instead of the others.
    """
    config = run.config
    return tasks.register(
        run.corpus,
        vocabulary,
        files.read_json(run.corpus / "stats.json"),
        config.data.rates.to_dict(),
        labelled=run.pairs if (run.pairs / "stats.json").exists() else None,
        ict_removal=config.data.ict_removal,
        shuffle_buffer=config.data.shuffle_buffer,
        held_out=config.data.held_out,
        validation=validation,
    )


def make_batches(run: Run, vocabulary: WordPiece, mesh: jax.sharding.Mesh) -> Batches:
    """The batches of the config's tasks.

    Raises:
      UserError: the data has fewer examples than a batch has rows.
    """
    config = run.config
    task, examples = register_tasks(run, vocabulary)
    if examples < config.train.batch_size:
        raise UserError(
            f"the data gives {examples} examples, fewer than train.batch_size={config.train.batch_size}: "
            "more data or a smaller batch is needed"
        )
    return Batches(
        task,
        *_features(config, vocabulary.sep_id),
        batch_size=config.train.batch_size,
        lanes=config.data.lanes,
        seed=config.seed,
        sharding=sharding.batch_sharding(mesh),
    )


def abstract_batch(config: ConfigDict, mesh: jax.sharding.Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, types and shardings of the config's batches; needs no data.

    Raises:
      UserError: the mesh does not divide the batch.
    """
    any_id = 0  # no shape depends on what [SEP] is
    return batches.abstract(*_features(config, any_id), config.train.batch_size, sharding.batch_sharding(mesh))


def _features(config: ConfigDict, sep_id: int) -> tuple[dict[str, int], seqio.FeatureConverter]:
    """What the config's tasks give: the lengths of their features, and what makes rows of them."""
    if models.is_mlm(config):
        return features.mlm_lengths(config.data.document_length), features.MlmConverter()
    lengths = features.pair_lengths(config.data.query_length, config.data.document_length)
    return lengths, features.TwoTowerConverter(sep_id)


def split_set(run: Run) -> str | None:
    """The set whose questions were divided for fine-tuning."""
    return run.holder("sets").config.split.set if run.training.exists() else None


def validation(run: Run) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """The first of the questions that are held out of the training ones, at most as many as validate a checkpoint."""
    training = beir.read_folder(run.training)
    chosen = list(training.qrels[splits.VALIDATION])[: run.config.loop.validate_queries]
    return {id: training.queries[id] for id in chosen}, {id: training.qrels[splits.VALIDATION][id] for id in chosen}
