"""What a training task is, and the table of all tasks. `config.data.rates.NAME` says how often the task NAME is drawn.

A task is one file of the package `tasks`, or of a plugin:

    @register
    class Titles(PassagePairs):
        name, what = "titles", "how often a title asks for a passage"

        def pair(self, record, seed, lengths, given): ...

It reads records, which a stage wrote as shards, and makes an example of each: what a recipe trains on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.config.fields import NOT_NEGATIVE, Field, declare, declared
from retrieval.data.examples.token_rows import Record, Specials
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.libraries import tf
from retrieval.registry import Table

# Makes an example of a record, a seed (int32 [2]) and the lengths of its features.
Maker = Callable[[Record, "tf.Tensor", Mapping[str, int]], Record]


class Feature(NamedTuple):
    """A feature of an example."""

    dtype: str = "int32"
    rank: int = 1


class ExampleKind(NamedTuple):
    """What an example has. A recipe trains on one kind.

    Attributes:
      what: in words, for errors.
      features: by name.
      optional: those that it has only where somebody asks for them.
    """

    what: str
    features: Mapping[str, Feature]
    optional: Mapping[str, Feature] = {}


KINDS: Table[ExampleKind] = Table("kind of examples")
KINDS.register(
    "pair",
    ExampleKind(
        "pairs of a query and a document",
        {
            "query": Feature(),
            "document": Feature(rank=2),
            "document_id": Feature(),
            "log_q": Feature("float32"),
        },
        {"positive_ids": Feature(), "teacher": Feature("float32")},
    ),
)
KINDS.register(
    "generation", ExampleKind("sources and what is written of each", {"source": Feature(), "target": Feature()})
)
KINDS.register(
    "terms",
    ExampleKind(
        "passages whose words are weighed",
        {"text": Feature(), "targets": Feature("float32"), "counts": Feature("float32")},
    ),
)
KINDS.register(
    "spans",
    ExampleKind(
        "questions with paragraphs and the places of their answers",
        {
            "pair": Feature(rank=2),
            "spans": Feature(rank=2),
            "paragraph": Feature(),
            "retrieved": Feature("float32"),
        },
        {"question": Feature(), "candidates": Feature(), "holds": Feature()},
    ),
)
_MASKED = {name: Feature() for name in ("text", "positions", "labels")}
KINDS.register("masked", ExampleKind("masked texts", _MASKED))
KINDS.register(
    "masked_pairs",
    ExampleKind("masked pairs of texts, which follow each other or not", {**_MASKED, "is_random": Feature()}),
)


class Shards(NamedTuple):
    """Files of records.

    Attributes:
      pattern: of their names.
      features: gives those of a record, as `tf.io.parse_single_example` takes them.
      optional: gives features that are parsed only where examples shall have them.
    """

    pattern: str
    features: Callable[[], Mapping[str, Any]]
    optional: Callable[[], Mapping[str, Any]] = dict


class Stored(NamedTuple):
    """What lies on the disk for tasks.

    Attributes:
      corpus: the folder that the stage `prepare` wrote.
      statistics: its `stats.json`; `{"tasks": {}}` without a corpus.
      labelled: the folder of labelled examples, which the stage that the recipe names wrote, or None.
    """

    corpus: Path
    statistics: Mapping[str, Any]
    labelled: Path | None = None


class Given(NamedTuple):
    """What a task makes its examples with.

    Attributes:
      vocabulary: of the records' tokens.
      specials: its special tokens.
      options: the values of the fields that the task alone reads, by name.
      weights: of each task that is drawn, its share of the draws divided by the size of its epoch.
      labelled: the folder of labelled examples, as `Stored` has it.
    """

    vocabulary: Vocabulary
    specials: Specials
    options: Mapping[str, Any]
    weights: Mapping[str, float]
    labelled: Path | None = None


class TaskKind:
    """A task. One of your own overrides `maker`, and what else differs.

    Attributes:
      name: of the task and of its field `config.data.rates.NAME`.
      what: one line of help for that field, of a plugin's task.
      kind: of its examples, a name in KINDS.
      is_labelled: whether its records are labelled examples, written by the stage `pairs` or another one that a recipe
        names. Others are of the corpus.
      shards: the files of its records.
      options: the fields that it alone reads, `config.data.NAME`.
    """

    name: str
    what: str = ""
    kind: str = "pair"
    is_labelled: bool = False
    shards: Shards
    options: Sequence[str] = ()

    def epoch(self, stored: Stored, negatives: int) -> int:
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

    def maker(self, given: Given) -> Maker:
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


def options_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields that one task alone reads, from the group `data` of a config."""
    return {name: data[name] for task in TASKS.values() for name in task.options}
