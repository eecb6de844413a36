"""Tasks over the passages of a prepared corpus (Chang et al. 2020, section 3).

A record is what the stage `prepare` writes: a passage (`ids`, and the `lengths` of its sentences), the `title` of its
article, a lead (`lead_ids`, `lead_lengths`), `document_id`, and `counts`. The lead is that of the passage's own article
in the passage shards. In the link shards it is that of an article that the passage links to. `counts` says how often an
epoch of ICT, of BFS and of WLP draws the passage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrieval.data.examples.task_kind import TASKS, Given, Maker, Shards, Stored, TaskKind
from retrieval.data.examples.token_rows import Record, document_row, query_row, random_sentence
from retrieval.libraries import tf

# Columns of `counts`.
ICT, BFS, WLP = range(3)


def _features() -> Mapping[str, Any]:
    integers = tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)
    return {
        "document_id": tf.io.FixedLenFeature([], tf.int64),
        "counts": tf.io.FixedLenFeature([3], tf.int64),
    } | dict.fromkeys(("title", "ids", "lengths", "lead_ids", "lead_lengths"), integers)


PASSAGES = Shards("passages-*.tfrecord", _features)
LINKS = Shards("links-*.tfrecord", _features)


class CorpusTask(TaskKind):
    """A task that reads every passage."""

    shards = PASSAGES

    def epoch(self, stored: Stored, negatives: int) -> int:
        """As `TaskKind.epoch`, from the statistics of the corpus."""
        size = stored.statistics["tasks"].get(self.name, {}).get("pairs", 0)
        if not size:
            raise self.no_example("the corpus has none")
        return size


class PassagePairs(CorpusTask):
    """Pairs whose document is a passage. One of your own overrides `pair`, and `draws` where it cannot use them all."""

    def pair(
        self, record: Record, seed: tf.Tensor, lengths: Mapping[str, int], given: Given
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The token ids of the query and of the document, with [CLS] and [SEP], no longer than `lengths` say."""
        raise NotImplementedError(f"the task '{self.name}' makes no pairs")

    def maker(self, given: Given) -> Maker:
        """As `TaskKind.maker`: the pair, with the passage's id and log Q."""
        weights = {task: weight for task, weight in given.weights.items() if not TASKS[task].is_labelled}

        def make(record: Record, seed: tf.Tensor, lengths: Mapping[str, int]) -> Record:
            query, document = self.pair(record, seed, lengths, given)
            own_id = record["document_id"]
            example = {
                "query": query,
                "document": document[None],
                "document_id": own_id[None],
                "log_q": log_q(record, weights)[None],
            }
            count = lengths.get("positive_ids")  # no other passage is known to be one
            return example | ({"positive_ids": tf.fill([count], own_id)} if count else {})

        return make


class LeadPairs(PassagePairs):
    """The query is a random sentence of the lead, the document `[CLS] passage [SEP]`."""

    def pair(
        self, record: Record, seed: tf.Tensor, lengths: Mapping[str, int], given: Given
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """As `PassagePairs.pair`."""
        start, end = random_sentence(record["lead_lengths"], seed)
        query = query_row(record["lead_ids"][start:end], lengths["query"], given.specials)
        return query, document_row(record["title"][:0], record["ids"], lengths["document"], given.specials)


def log_q(record: Record, weights: Mapping[str, float]) -> tf.Tensor:
    """log Q(d): the logarithm of the probability that a draw of the mixture has this record's passage as its document.

    Args:
      weights: of each task over the corpus that is drawn, its share of the draws divided by the size of its epoch.
    """
    terms = [tf.cast(TASKS[task].draws(record), tf.float32) * weight for task, weight in weights.items()]
    return tf.math.log(tf.add_n(terms))
