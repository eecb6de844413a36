"""What a training task is, and the table of all tasks. `config.data.rates.NAME` says how often the task NAME is drawn.

A task is one file of the package `tasks`, or of a plugin:

    @register
    class Titles(PassagePairs):
        name, what = "titles", "how often a title asks for a passage"

        def pair(self, record, seed, lengths, inputs): ...

It reads records, which a stage wrote as shards, and makes an example of each: what a recipe trains on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common.errors import UserError
from retrieval.common.libraries import tf
from retrieval.common.registry import Table
from retrieval.config.fields import NOT_NEGATIVE, Field, declare, declared
from retrieval.data.examples.example_kind import PAIRS, ExampleKind
from retrieval.data.examples.token_rows import Record, Specials
from retrieval.data.tokenizers.vocab import Vocabulary

# Makes an example of a record, a seed (int32 [2]) and the lengths of its features.
Maker = Callable[[Record, "tf.Tensor", Mapping[str, int]], Record]


class RecordFiles(NamedTuple):
    """Files of records.

    Attributes:
      pattern: of their names.
      features: of a record, its dtype. A record may lack one: it is empty then.
      numbers: those that are one whole number, which every record has.
    """

    pattern: str
    features: Mapping[str, str]
    numbers: Sequence[str] = ()

    def parse(self, raw: tf.Tensor) -> Record:
        """A record of its bytes."""
        return tf.io.parse_single_example(raw, self.specs())

    def specs(self) -> dict[str, Any]:
        """The features, as `tf.io.parse_single_example` takes them."""
        several = {name: tf.io.FixedLenSequenceFeature([], tf.as_dtype(d), True) for name, d in self.features.items()}
        return several | {name: tf.io.FixedLenFeature([], tf.int64) for name in self.numbers}


SCORED = "scored pairs"  # a statistic: each record is two texts and how alike they are, and has no right document
IN_ORDER = "in order"  # a statistic of labelled examples: batches are to have the records as they stand


class TaskData(NamedTuple):
    """What lies on the disk for tasks.

    Attributes:
      corpus: the folder that the stage `prepare` wrote.
      statistics: its `stats.json`; `{"tasks": {}}` without a corpus.
      labelled: the folder of labelled examples, which the stage that the recipe names wrote, or None.
    """

    corpus: Path
    statistics: Mapping[str, Any]
    labelled: Path | None = None


class TaskInputs(NamedTuple):
    """What a task makes its examples with.

    Attributes:
      vocabulary: of the records' tokens.
      specials: its special tokens.
      options: the values of the fields that the task alone reads, by name.
      weights: of each task that is drawn, its share of the draws divided by the size of its epoch.
      labelled: the folder of labelled examples, as `TaskData` has it.
      source: the number of their source, for examples that have it.
    """

    vocabulary: Vocabulary
    specials: Specials
    options: Mapping[str, Any]
    weights: Mapping[str, float]
    labelled: Path | None = None
    source: int = 0


class TaskKind:
    """A task. One of your own overrides `maker`, and what else differs.

    Attributes:
      name: of the task and of its field `config.data.rates.NAME`.
      what: one line of help for that field, of a plugin's task.
      kind: of its examples.
      is_labelled: whether its records are labelled examples, written by the stage `pairs` or another one that a recipe
        names. Others are of the corpus.
      shards: the files of its records.
      options: the fields that it alone reads, `config.data.NAME`.
    """

    name: str
    what: str = ""
    kind: ExampleKind = PAIRS
    is_labelled: bool = False
    shards: RecordFiles
    options: Sequence[str] = ()

    def epoch(self, stored: TaskData, negatives: int) -> int:
        """The number of examples of an epoch.

        Args:
          negatives: hard negatives of an example.

        Raises:
          UserError: there is none.
        """
        raise NotImplementedError(f"the task '{self.name}' does not say how many examples it has")

    def readable(self, record: Record, bound: int) -> Record:
        """A record of the shards as the other functions get it.

        Args:
          bound: the bucket below which sentences are held out of training (`holdout`).
        """
        return record

    def draws(self, record: Record) -> tf.Tensor:
        """How often an epoch of this task draws the passage of a record, an integer."""
        return tf.constant(1)

    def is_drawn(self, record: Record, negatives: int) -> tf.Tensor:
        """Whether an example can be made of a record."""
        return self.draws(record) > 0

    def stream(self, records: tf.data.Dataset) -> tf.data.Dataset:
        """The records of a lane, before examples are made of them: a task may put others beside each."""
        return records

    def maker(self, inputs: TaskInputs) -> Maker:
        """The function that makes examples. Its randomness comes from the seed alone.

        Raises:
          UserError: an option does not fit the vocabulary.
        """
        raise NotImplementedError(f"the task '{self.name}' makes no examples")

    def no_example(self, why: str) -> UserError:
        """The error of a task without examples."""
        return UserError(f"task '{self.name}' has no example: {why}; or set config.data.rates.{self.name}=0")


TASKS: Table[TaskKind] = Table("task", "retrieval.data.examples.tasks", "task")


def register(task: type[TaskKind]) -> type[TaskKind]:
    """Adds a task to TASKS, and the rate of a plugin's to the config. To be used as a decorator."""
    entry = TASKS.register(task.name, task())
    if f"data.rates.{entry.name}" not in declared():
        declare("data.rates", **{entry.name: Field(0.0, NOT_NEGATIVE, entry.what)})
    return task


def drawn(rates: Mapping[str, float], labelled: bool) -> list[str]:
    """The tasks with a rate above 0 whose records are labelled examples, or those whose records are of the corpus."""
    return [task for task, rate in rates.items() if rate and TASKS[task].is_labelled == labelled]
