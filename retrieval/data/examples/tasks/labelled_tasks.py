"""Tasks over labelled examples, which the stage `pairs` writes as shards (Chang et al. 2020, section 4.1).

`pair_shards` says what a record has.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.libraries import tf
from retrieval.common.runtime.filler import FILLER
from retrieval.data.examples.example_kind import GUIDE, Lengths
from retrieval.data.examples.task_kind import Maker, RecordFiles, TaskData, TaskInputs, TaskKind, register
from retrieval.data.examples.token_rows import Record, Specials, document_row, query_row
from retrieval.data.labelled import pair_shards

_log = logging.getLogger(__name__)
_warn = functools.cache(_log.warning)  # the choice of rows, the batches and the training ask alike
Known = Callable[[Record], "tf.Tensor"]  # what gives the ids of all known positives of a record's query


_TEXTS = ("query", "titles", "title_lengths", "texts", "text_lengths")
_INTEGERS = (*_TEXTS, "document_id", "known", "simple", GUIDE)
_FEATURES: dict[str, str] = {**dict.fromkeys(_INTEGERS, "int64"), **dict.fromkeys(("counts", "teacher"), "float32")}
LABELLED = RecordFiles(pair_shards.PATTERN, _FEATURES)


class LabelledTask(TaskKind):
    """A task that reads every labelled example."""

    is_labelled = True
    shards = LABELLED

    def epoch(self, stored: TaskData, negatives: int) -> int:
        """As `TaskKind.epoch`. With negatives an example is made only of the records that have some."""
        if not stored.labelled:
            raise self.no_example("no stage has written pairs, see config.pairs.files and config.split.set")
        written = files.read_json(stored.labelled / "stats.json")
        size = written["pairs with negatives" if negatives else "pairs"]
        if not size:
            raise self.no_example(f"none has a negative, and config.data.negatives={negatives}: set that to 0")
        if without := written["pairs"] - size:
            what = "%s: %d of %d labelled pairs have no negative, and are left out"
            _warn(what, stored.labelled, without, written["pairs"])
        return size

    def is_drawn(self, record: Record, negatives: int) -> tf.Tensor:
        """As `TaskKind.is_drawn`."""
        return tf.size(record["document_id"]) > 1 if negatives else tf.constant(True)


def known_ids(folder: Path | None) -> Known:
    """What gives the ids of all known positives of a record's query, of the folder of the labelled examples."""
    assert folder, "a task without labelled examples has ended the run"
    ids, starts = map(tf.constant, pair_shards.read_known(folder))
    return lambda record: ids[starts[record["known"][0]] : starts[record["known"][0] + 1]]


def documents(record: Record, chosen: tf.Tensor, length: int, specials: Specials) -> Sequence[tf.Tensor]:
    """The rows of some of a record's texts, `[CLS] title [SEP] text [SEP]`, at most so long.

    Args:
      chosen: their places among the record's texts, [K].
    """
    ragged: Any = tf.RaggedTensor  # whose constructors the stubs lack
    titles = ragged.from_row_lengths(record["titles"], record["title_lengths"])
    texts = ragged.from_row_lengths(record["texts"], record["text_lengths"])
    places = (chosen[number] for number in range(chosen.shape[0] or 0))
    return [document_row(titles[place], texts[place], length, specials) for place in places]


@register
class LabelledPairs(LabelledTask):
    """A query with one of its positives, and with hard negatives where config.data.negatives asks for some."""

    name = "pairs"

    def maker(self, inputs: TaskInputs) -> Maker:
        """As `TaskKind.maker`."""
        weight, known = inputs.weights[self.name], known_ids(inputs.labelled)

        def make(record: Record, seed: tf.Tensor, lengths: Mapping[str, int]) -> Record:
            example = draw(record, seed, lengths, inputs.specials, weight, known)
            return {**example, "source": tf.constant([inputs.source])} if "source" in lengths else example

        return make


def draw(record: Record, seed: tf.Tensor, lengths: Lengths, specials: Specials, weight: float, known: Known) -> Record:
    """The query, and `[CLS] title [SEP] text [SEP]` of the positive and of negatives, which are drawn.

    Of these there are `lengths["document_id"] - 1`. Where the record has fewer, each is taken before one is again.

    Args:
      weight: the task's share of the draws divided by the size of its epoch: how often a record is drawn.
      known: as `known_ids` gives it.
    """
    negatives = lengths["document_id"] - 1
    order = tf.argsort(tf.random.stateless_uniform([tf.size(record["document_id"]) - 1], seed))
    drawn = tf.gather(order, tf.range(negatives) % tf.maximum(1, tf.size(order))) + 1 if negatives else []
    chosen = tf.ensure_shape(tf.concat([[0], tf.cast(drawn, tf.int32)], 0), [negatives + 1])
    return of_chosen(record, chosen, lengths, specials, weight, known)


def of_chosen(
    record: Record, chosen: tf.Tensor, lengths: Lengths, specials: Specials, weight: float, known: Known
) -> Record:
    """The example of some texts of a record, the positive first; `chosen` [K] are their places."""
    negatives, length = lengths["document_id"] - 1, lengths["document"]
    rows = documents(record, chosen, length, specials)
    counts = tf.gather(tf.reshape(record["counts"], [-1, 3]), chosen)
    # As a positive; with negatives, as a positive of the records that have some, and as one of so many negatives.
    times = counts[:, 1] + negatives * counts[:, 2] if negatives else counts[:, 0]
    padded = [tf.pad(ids, [[0, length - tf.size(ids)]], constant_values=FILLER) for ids in rows]
    example = {"query": query_row(record["query"], lengths["query"], specials), "document": tf.stack(padded)}
    example |= {"document_id": tf.gather(record["document_id"], chosen), "log_q": tf.math.log(times * weight)}
    if "teacher" in lengths:
        example["teacher"] = tf.gather(record["teacher"], chosen)
    if GUIDE in lengths:
        example[GUIDE] = tf.gather(record[GUIDE], tf.concat([[0], 1 + chosen], 0))
    if count := lengths.get("positive_ids"):
        ids = known(record)  # filled up with its own
        example["positive_ids"] = tf.concat([ids, tf.fill([count - tf.size(ids)], example["document_id"][0])], 0)
    return example
