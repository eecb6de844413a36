"""The seqio registry: the only file that adds tasks and mixtures to it."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import seqio
import tensorflow as tf

from retrieval.data import pretraining
from retrieval.data.pretraining import Specials
from retrieval.data.vocab import WordPiece
from retrieval.errors import UserError, unknown_name

_PAIRS = {"ict": 0, "bfs": 1, "wlp": 2}  # task -> its column in a record's `counts`
TASKS = (*_PAIRS, "mlm")

_RECORD = {
    "document_id": tf.io.FixedLenFeature([], tf.int64),
    "counts": tf.io.FixedLenFeature([3], tf.int64),
} | {
    name: tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)
    for name in ("title", "ids", "lengths", "lead_ids", "lead_lengths")
}


def register(
    corpus: Path,
    vocabulary: WordPiece,
    statistics: Mapping[str, Any],
    rates: Mapping[str, float],
    *,
    ict_removal: float = 1.0,
    shuffle_buffer: int = 1024,
) -> str:
    """Registers the tasks of `rates` over a prepared corpus; returns the name to get the dataset by.

    One task is registered under its own name, several also as a mixture such as 'ict+bfs+wlp'.

    Args:
      corpus: the folder that `prepare` wrote, and `statistics` its `stats.json`.
      rates: task -> mixing rate (the paper's mixture is uniform); a rate of 0 leaves the task out.

    Raises:
      UserError: an unknown task, no task, a task that the corpus has no example for, or MLM among pair tasks.
    """
    rates = {task: rate for task, rate in rates.items() if rate}
    _check(rates, statistics)
    total = sum(rates.values())
    weights = {
        _PAIRS[task]: rate / total / statistics["tasks"][task]["pairs"]
        for task, rate in rates.items()
        if task in _PAIRS
    }
    specials = Specials.of(vocabulary)
    vocab = seqio.PassThroughVocabulary(len(vocabulary))
    functions = {
        "ict": functools.partial(pretraining.ict, specials=specials, removal=ict_removal),
        "bfs": functools.partial(pretraining.lead_to_passage, specials=specials),
        "wlp": functools.partial(pretraining.lead_to_passage, specials=specials),
        "mlm": functools.partial(pretraining.mlm, specials=specials),
    }
    for task in rates:
        seqio.TaskRegistry.remove(task)
        seqio.TaskRegistry.add(
            task,
            source=seqio.TFExampleDataSource(
                {"train": str(corpus / ("links-*.tfrecord" if task == "wlp" else "passages-*.tfrecord"))}, _RECORD
            ),
            preprocessors=[_int32, functools.partial(_usable, task=task), _example(functions[task], weights)],
            output_features=_output_features("mlm" if task == "mlm" else "pair", vocab),
            shuffle_buffer_size=shuffle_buffer,
        )
    if len(rates) == 1:
        return next(iter(rates))
    name = "+".join(rates)
    seqio.MixtureRegistry.remove(name)
    seqio.MixtureRegistry.add(name, list(rates.items()))
    return name


def _check(rates: Mapping[str, float], statistics: Mapping[str, Any]) -> None:
    if not rates:
        raise UserError(f"no pre-training task has a rate above 0; known: {', '.join(TASKS)}")
    for task, rate in rates.items():
        if task not in TASKS:
            raise unknown_name("task", task, TASKS)
        if rate < 0:
            raise UserError(f"task '{task}': the rate is {rate}; it must not be negative")
        if not statistics["tasks"][task]["pairs"]:
            raise UserError(f"task '{task}': the corpus has no example for it; set config.data.rates.{task}=0")
    if "mlm" in rates and len(rates) > 1:
        raise UserError("task 'mlm' trains an encoder on single texts and cannot be mixed with tasks of pairs")


def _int32(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(lambda record: {k: tf.cast(v, tf.int32) for k, v in record.items()}, tf.data.AUTOTUNE)


def _usable(dataset: tf.data.Dataset, task: str) -> tf.data.Dataset:
    """ICT needs two sentences, BFS a lead that is not the passage's own section; the others take every record."""
    if task not in ("ict", "bfs"):
        return dataset
    return dataset.filter(lambda record: record["counts"][_PAIRS[task]] > 0)


def _example(function: Callable, weights: Mapping[int, float]) -> Callable:
    @seqio.map_over_dataset(num_seeds=1)
    def draw(record, seed, sequence_length):
        example = function(record, tf.cast(tf.stack(seed), tf.int32), sequence_length)
        if weights:
            example["document_id"] = record["document_id"][None]
            example["log_q"] = pretraining.log_q(record["counts"], weights)[None]
        return example

    return draw


def _output_features(kind: str, vocab: seqio.Vocabulary) -> dict[str, seqio.Feature]:
    names = ("text", "positions", "labels") if kind == "mlm" else ("query", "document", "document_id", "log_q")
    dtypes = {name: tf.float32 if name == "log_q" else tf.int32 for name in names}
    return {name: seqio.Feature(vocab, add_eos=False, dtype=dtype) for name, dtype in dtypes.items()}
