"""The seqio registry: the only file that adds tasks and mixtures to it. It knows no task by name."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from retrieval.common.errors import UserError, listed, unknown_name
from retrieval.common.libraries import seqio, tf
from retrieval.config.fields import declared
from retrieval.data import holdout
from retrieval.data.examples import batches
from retrieval.data.examples.task_kind import TASKS, Maker, TaskData, TaskInputs, TaskKind
from retrieval.data.examples.token_rows import Record, Specials
from retrieval.data.shards import tfrecords
from retrieval.data.tokenizers.prefixes import NONE, Prefixes
from retrieval.data.tokenizers.vocab import Vocabulary

_log = logging.getLogger(__name__)

_MANY = 1000  # examples per lane: so many are never all in other lanes
_READ_BYTES = 2**18  # of a file at a time, as `tf.data.TFRecordDataset` does


def register(
    stored: TaskData,
    vocabulary: Vocabulary,
    rates: Mapping[str, float],
    *,
    options: Mapping[str, Any] | None = None,
    shuffle_buffer: int = 1024,
    held_out: float = 0.0,
    validation: bool = False,
    negatives: int = 0,
    optional: Collection[str] = (),
    skip_empty: bool = False,
    prefixes: Prefixes = NONE,
    label: str = "",
    source: int = 0,
) -> tuple[str, dict[str, int]]:
    """Registers the tasks of `rates`; returns the name to get the dataset by, and the examples of each task's epoch.

    One task is registered under its own name, several also as a mixture such as 'ict+bfs+wlp'.

    Args:
      rates: task -> mixing rate; a rate of 0 leaves the task out.
      options: values of the fields that tasks declare, by name; by default those of the declarations.
      held_out: share of the corpus's passages that no example has anything of, or the only ones that are drawn where
        `validation` is set; the names then end in '_validation'.
      negatives: hard negatives of an example. Only labelled records have any, and those that have none are left out.
      optional: the optional fields that examples have, such as 'positive_ids'; others may be among these names.
      skip_empty: whether a task that there is no example for is left out, where another one has some.
      prefixes: what stands before queries and documents.
      label: what the names of tasks end in; several of one kind can be there at once.
      source: the number that examples have in their field `source`, where that is among `optional`.

    Raises:
      UserError: an unknown task, no task, a task that there is no example for, or one whose options do not fit.
    """
    check_rates(rates)
    sizes = _sizes([task for task, rate in rates.items() if rate], stored, negatives, skip_empty)
    rates = {task: rates[task] for task in sizes}
    weights = {task: rate / sum(rates.values()) / sizes[task] for task, rate in rates.items()}
    first_records = _first_records(sizes, stored)
    suffix, bound = "_validation" if validation else label, holdout.bound(held_out)
    for name in rates:
        task = TASKS[name]
        own = {name: (options or {}).get(name, declared()[f"data.{name}"].default) for name in task.options}
        specials = Specials.of(vocabulary, prefixes.of_stored if task.is_labelled else prefixes)
        make = task.maker(TaskInputs(vocabulary, specials, own, weights, stored.labelled, source))
        is_drawn = functools.partial(_is_drawn, task=task, negatives=negatives, bound=bound, validation=validation)
        read = functools.partial(_read, task=task, bound=0 if validation else bound)
        seqio.TaskRegistry.remove(name + suffix)
        seqio.TaskRegistry.add(
            name + suffix,
            source=_source(task, stored, first_records[name]),
            preprocessors=[functools.partial(_kept, read=read, is_drawn=is_drawn), task.stream, _example(make)],
            output_features=_output_features(task, seqio.PassThroughVocabulary(len(vocabulary)), optional),
            shuffle_buffer_size=shuffle_buffer,
        )
    registered = "+".join(rates) + suffix
    if len(rates) > 1:
        mixture({task + suffix: rate for task, rate in rates.items()}, registered)
    return registered, sizes


def mixture(rates: Mapping[str, float], name: str) -> str:
    """Registers a mixture of tasks, by their registered names, under its own; returns that."""
    from retrieval.data.examples.seqio_classes import SeededMixture  # a class of seqio, which takes seconds

    seqio.MixtureRegistry.remove(name)
    seqio.MixtureRegistry.add(name, list(rates.items()), mixture_cls=SeededMixture)
    return name


def _sizes(tasks: Collection[str], stored: TaskData, negatives: int, skip_empty: bool) -> dict[str, int]:
    """The examples of an epoch of each task; those without any are left out with a warning, or refused."""
    sizes, refused = {}, {}
    for task in tasks:
        try:
            sizes[task] = TASKS[task].epoch(stored, negatives)
        except UserError as error:
            refused[task] = error
    if refused and not (skip_empty and sizes):
        raise next(iter(refused.values()))
    for task in refused:
        _log.warning("task '%s' is left out: it has no example (config.data.skip_empty)", task)
    return sizes


def check_rates(rates: Mapping[str, float]) -> None:
    """Checks that there is something to draw, and that it is known."""
    if unknown := next((task for task in rates if task not in TASKS), ""):
        raise unknown_name("task", unknown, TASKS)
    if not any(rates.values()):
        raise UserError(f"config.data.rates has none above 0: set config.data.rates.NAME=1, of {listed(sorted(TASKS))}")


def check_lanes(examples: Mapping[str, int], lanes: int, label: str = "") -> None:
    """Checks that every lane has an example of every task that has been registered.

    seqio repeats a lane's records before our filters: where these let none pass, it would look for one for ever.

    Args:
      examples: of each task's epoch. Of many not all can be in other lanes, and no file is opened.
      label: as `register` has it.

    Raises:
      UserError: a lane has none, or a file cannot be read.
    """
    for name, count in examples.items():
        if count >= _MANY * lanes:
            continue
        filled = _lanes_with_examples(seqio.TaskRegistry.get(name + label), lanes)
        if lacking := [lane for lane in range(lanes) if lane not in filled]:
            remedy = f"take fewer lanes (a divisor of the shards), more data, or config.data.rates.{name}=0"
            empty = f"none of them in {len(lacking)} of config.data.lanes={lanes}"
            raise UserError(f"task '{name}': {count} examples, {empty}, first lane-{lacking[0]:05d}: {remedy}")


def _first_records(sizes: Mapping[str, int], stored: TaskData) -> dict[str, int]:
    """The record of a file that each task begins with.

    All files of a lane are read at once. Two tasks that begin at the same record would draw the same passages.
    """
    first_records, corpus = {}, {name: counts["pairs"] for name, counts in stored.statistics["tasks"].items()}
    for name in sizes:
        shards = TASKS[name].shards
        readers = [other for other in sizes if TASKS[other].shards is shards]
        number_of_files = max(1, len(list(_folder(TASKS[name], stored).glob(shards.pattern))))
        others = (count for other, count in corpus.items() if other in TASKS and TASKS[other].shards is shards)
        records = max(*(sizes[reader] for reader in readers), *others, 0) // number_of_files
        first_records[name] = records * readers.index(name) // len(readers)
    return first_records


def _folder(task: TaskKind, stored: TaskData) -> Path:
    if not task.is_labelled:
        return stored.corpus
    assert stored.labelled, "`epoch` refuses the task without its files"
    return stored.labelled


def _source(task: TaskKind, stored: TaskData, first_record: int) -> Any:
    """The records of a task, a `TFExampleDataSource`. Files are found in the folder by their names alone.

    A position that is saved holds the paths of files. When training goes on, the folder may have another one, and what
    lies at the old one may be of another run.

    Args:
      first_record: of each file, with which the task begins; those before it come last.
    """
    folder, shards = _folder(task, stored), task.shards

    def read(path: tf.Tensor) -> tf.data.Dataset:
        name = tf.strings.regex_replace(path, ".*/", "")
        # What `tf.data.TFRecordDataset` stands on: the state of that has the path once more.
        paths = [tf.strings.join([f"{folder}/", name])]
        records = tf.raw_ops.TFRecordDataset(filenames=paths, compression_type="", buffer_size=_READ_BYTES)
        dataset = tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string))
        return dataset.skip(first_record).concatenate(dataset.take(first_record)) if first_record else dataset

    reader: Any = read  # of tensors, where seqio declares texts
    return seqio.TFExampleDataSource({"train": str(folder / shards.pattern)}, shards.specs(), reader_cls=reader)


def _lanes_with_examples(task: seqio.Task, lanes: int) -> set[int]:
    """Reads every file up to the first record that is one of the task's; seqio deals the files out in this order."""
    source: Any = task.source  # of `_source`, which parses records
    kept = task.preprocessors[0].keywords
    try:
        return {
            number % lanes
            for number, path in enumerate(source.list_shards("train"))
            if any(kept["is_drawn"](kept["read"](source.parse_fn(raw))) for raw in tfrecords.records(Path(path)))
        }
    except tf.errors.OpError as error:
        raise batches.unreadable(f"task '{task.name}'", error) from error


def _kept(dataset: tf.data.Dataset, read: Callable, is_drawn: Callable) -> tf.data.Dataset:
    return dataset.map(read, tf.data.AUTOTUNE).filter(is_drawn)


def _read(record: Record, task: TaskKind, bound: int) -> Record:
    narrow = {name: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for name, v in record.items()}
    return task.readable(narrow, bound)


def _is_drawn(record: Record, task: TaskKind, negatives: int, bound: int, validation: bool) -> tf.Tensor:
    """Whether a record is one of the task's, on its side of what is held out. No labelled example is held out here."""
    usable, is_open = task.is_drawn(record, negatives), task.is_labelled or not bound
    return usable if is_open else usable & ((holdout.bucket(record["document_id"]) < bound) == validation)


def _example(make: Maker) -> Callable:
    @seqio.map_over_dataset(num_seeds=1, num_parallel_calls=None)
    def draw(record, seed, sequence_length):
        return make(record, tf.cast(tf.stack(seed), tf.int32), sequence_length)

    return draw


def _output_features(task: TaskKind, vocab: seqio.PassThroughVocabulary, optional: Collection[str]) -> dict[str, Any]:
    fields = {name: f for name, f in task.kind.fields.items() if not f.is_optional or name in optional}
    make = functools.partial(seqio.Feature, vocab, add_eos=False)
    return {name: make(dtype=tf.as_dtype(f.dtype), rank=len(f.shape) or 1) for name, f in fields.items()}
