"""The task 'pairs': labelled examples, for fine-tuning (Chang et al. 2020, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from retrieval.data.examples.labelled_tasks import LabelledTask, documents, known_ids
from retrieval.data.examples.task_kind import Given, Maker, register
from retrieval.data.examples.token_rows import Record, Specials, query_row
from retrieval.data.labelled import pair_shards
from retrieval.libraries import tf
from retrieval.runtime.filler import FILLER


@register
class LabelledPairs(LabelledTask):
    """A query with one of its positives, and with hard negatives where config.data.negatives asks for some."""

    name = "pairs"

    def maker(self, given: Given) -> Maker:
        """As `TaskKind.maker`."""
        weight, known = given.weights[self.name], known_ids(given.labelled)

        def make(record: Record, seed: tf.Tensor, lengths: Mapping[str, int]) -> Record:
            example = draw(record, seed, lengths, given.specials, weight, known)
            return {**example, "source": tf.constant([given.source])} if "source" in lengths else example

        return make


def draw(
    record: Record,
    seed: tf.Tensor,
    lengths: Mapping[str, int],
    specials: Specials,
    weight: float,
    known: Callable[[Record], tf.Tensor],
) -> Record:
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
    record: Record,
    chosen: tf.Tensor,
    lengths: Mapping[str, int],
    specials: Specials,
    weight: float,
    known: Callable[[Record], tf.Tensor],
) -> Record:
    """The example of some texts of a record, the positive first; `chosen` [K] are their places."""
    negatives, length = lengths["document_id"] - 1, lengths["document"]
    rows = documents(record, chosen, length, specials)
    counts = tf.gather(tf.reshape(record["counts"], [-1, 3]), chosen)
    # As a positive; with negatives, as a positive of the records that have some, and as one of so many negatives.
    times = counts[:, 1] + negatives * counts[:, 2] if negatives else counts[:, 0]
    example = {
        "query": query_row(record["query"], lengths["query"], specials),
        "document": tf.stack([tf.pad(ids, [[0, length - tf.size(ids)]], constant_values=FILLER) for ids in rows]),
        "document_id": tf.gather(record["document_id"], chosen),
        "log_q": tf.math.log(times * weight),
    }
    if "teacher" in lengths:
        example["teacher"] = tf.gather(record["teacher"], chosen)
    if pair_shards.GUIDE in lengths:
        example[pair_shards.GUIDE] = tf.gather(record[pair_shards.GUIDE], tf.concat([[0], 1 + chosen], 0))
    if count := lengths.get("positive_ids"):
        example["positive_ids"] = _filled(known(record), example["document_id"][0], count)
    return example


def _filled(known: tf.Tensor, own: tf.Tensor, count: int) -> tf.Tensor:
    """The ids of a query's known positives, [count], filled up with that of its own."""
    return tf.concat([known, tf.fill([count - tf.size(known)], own)], 0)
