"""The tasks over the passages of a prepared corpus (Chang et al. 2020, section 3).

A record that a task gets is a passage (`ids`, and the `lengths` of its sentences), the `title` of its article, a lead
(`lead_ids`, `lead_lengths`), `document_id`, and `counts`. The lead is that of the passage's own article in the passage
shards. In the link shards it is that of an article that the passage links to. `counts` says how often an epoch of ICT,
of BFS and of WLP draws the passage. `without_held_out` makes it of what the stage `prepare` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.common.libraries import tf
from retrieval.data import holdout
from retrieval.data.examples.example_kind import Lengths
from retrieval.data.examples.task_kind import TASKS, Maker, RecordFiles, TaskData, TaskInputs, TaskKind, register
from retrieval.data.examples.token_rows import Record, document_row, query_row, random_sentence

Pair = tuple["tf.Tensor", "tf.Tensor"]  # the token ids of a query and of a document
# Columns of `counts`.
ICT, BFS, WLP = range(3)
_READ_AT_ONCE = 1024
_LAST_BUCKETS = ("ict_buckets", "bfs_buckets", "wlp_buckets")
_TEXTS = ("title", "title_bucket", "ids", "lengths", "buckets", "lead_ids", "lead_lengths", "lead_buckets")

PASSAGES = RecordFiles("passages-*.tfrecord", dict.fromkeys((*_TEXTS, *_LAST_BUCKETS), "int64"), ("document_id",))
LINKS = PASSAGES._replace(pattern="links-*.tfrecord")


class CorpusTask(TaskKind):
    """A task that reads every passage."""

    shards = PASSAGES

    def readable(self, record: Record, bound: int) -> Record:
        return without_held_out(record, bound)

    def is_drawn(self, record: Record, negatives: int) -> tf.Tensor:
        """As `TaskKind.is_drawn`; a passage may have lost all of its sentences."""
        return super().is_drawn(record, negatives) & (tf.size(record["ids"]) > 0)

    def epoch(self, stored: TaskData, negatives: int) -> int:
        if not (size := stored.statistics["tasks"].get(self.name, {}).get("pairs", 0)):
            raise self.no_example("the corpus has none")
        return size


class PassagePairs(CorpusTask):
    """Pairs whose document is a passage. One of your own overrides `pair`, and `draws` where it cannot use them all.

    Attributes:
      column: of `counts`, how often an epoch draws the passage; None for once.
    """

    column: int | None = None

    def draws(self, record: Record) -> tf.Tensor:
        """As `TaskKind.draws`."""
        return super().draws(record) if self.column is None else record["counts"][self.column]

    def pair(self, record: Record, seed: tf.Tensor, lengths: Lengths, inputs: TaskInputs) -> Pair:
        """The token ids of the query and of the document, with [CLS] and [SEP], no longer than `lengths` say."""
        raise NotImplementedError(f"the task '{self.name}' makes no pairs")

    def maker(self, inputs: TaskInputs) -> Maker:
        """As `TaskKind.maker`: the pair, with the passage's id and log Q."""
        weights = {task: weight for task, weight in inputs.weights.items() if not TASKS[task].is_labelled}

        def make(record: Record, seed: tf.Tensor, lengths: Lengths) -> Record:
            query, document = self.pair(record, seed, lengths, inputs)
            ids = {"document_id": record["document_id"][None]}
            if count := lengths.get("positive_ids"):  # no other passage is known to be one
                ids["positive_ids"] = tf.fill([count], record["document_id"])
            return {"query": query, "document": document[None], **ids, "log_q": log_q(record, weights)[None]}

        return make


@register
class InverseCloze(PassagePairs):
    """'ict', the Inverse Cloze Task (Lee et al. 2019): a sentence asks for the passage that it was taken from.

    The query is a random sentence, the document `[CLS] title [SEP] the other sentences [SEP]`. Every passage of two
    sentences or more is drawn once.
    """

    name = "ict"
    options = ("ict_removal",)
    column = ICT

    def pair(self, record: Record, seed: tf.Tensor, lengths: Lengths, inputs: TaskInputs) -> Pair:
        """As `PassagePairs.pair`. Chang et al. always take the sentence out of the document."""
        seeds = tf.random.split(seed, 2)
        start, end = random_sentence(record["lengths"], seeds[0])
        ids, removal = record["ids"], inputs.options["ict_removal"]
        rest = tf.concat([ids[:start], ids[end:]], 0)
        body = tf.cond(tf.random.stateless_uniform([], seeds[1]) < removal, lambda: rest, lambda: ids)
        query = query_row(ids[start:end], lengths["query"], inputs.specials)
        return query, document_row(record["title"], body, lengths["document"], inputs.specials)


class LeadPairs(PassagePairs):
    """The query is a random sentence of the lead, the document `[CLS] passage [SEP]`."""

    def is_drawn(self, record: Record, negatives: int) -> tf.Tensor:
        """As `TaskKind.is_drawn`; the lead may have lost all of its sentences."""
        return super().is_drawn(record, negatives) & (tf.size(record["lead_ids"]) > 0)

    def pair(self, record: Record, seed: tf.Tensor, lengths: Lengths, inputs: TaskInputs) -> Pair:
        """As `PassagePairs.pair`."""
        start, end = random_sentence(record["lead_lengths"], seed)
        query = query_row(record["lead_ids"][start:end], lengths["query"], inputs.specials)
        return query, document_row(record["title"][:0], record["ids"], lengths["document"], inputs.specials)


@register
class BodyFirst(LeadPairs):
    """'bfs', Body First Selection (Chang et al. 2020, section 3.2): a sentence of a lead asks for a passage behind it.

    Every passage that is not part of the lead itself is drawn once.
    """

    name = "bfs"
    column = BFS


@register
class LinkPrediction(LeadPairs):
    """'wlp', Wiki Link Prediction (Chang et al. 2020, section 3.3): a sentence of a lead asks for a passage elsewhere.

    It is one of another article that links to the lead's. Every passage is drawn once for each of its links.
    """

    name = "wlp"
    shards = LINKS
    column = WLP


def without_held_out(record: Record, bound: int) -> Record:
    """A record as tasks get it, without the sentences, and the title, of buckets below a bound (`holdout`)."""
    names = ("title", "ids", "lengths", "lead_ids", "lead_lengths")
    kept = {name: record[name] >= bound for name in ("title_bucket", "buckets", "lead_buckets")}

    def left() -> list[tf.Tensor]:
        of_title = tf.repeat(kept["title_bucket"], tf.size(record["title"]))
        of_text, of_lead = (tf.repeat(kept[f"{of}buckets"], record[f"{of}lengths"]) for of in ("", "lead_"))
        masks = (of_title, of_text, kept["buckets"], of_lead, kept["lead_buckets"])
        return [tf.boolean_mask(record[name], mask) for name, mask in zip(names, masks)]

    is_whole = tf.reduce_all(tf.concat(list(kept.values()), 0))  # which most are, and masks cost time
    texts = tf.cond(is_whole, lambda: [record[name] for name in names], left)
    counts = tf.stack([tf.reduce_sum(tf.cast(record[name] >= bound, tf.int32)) for name in _LAST_BUCKETS])
    return {"document_id": record["document_id"], "counts": counts, **dict(zip(names, texts))}


def read_training(corpus: Path, shards: RecordFiles, share: float) -> Iterator[Mapping[str, Any]]:
    """The records of a corpus that are not held out, as tasks get them, and `sentences`, how many the passage had.

    Args:
      share: of the passages, that is held out.
    """
    bound = holdout.bound(share)

    def read(raw: tf.Tensor) -> Record:
        record = shards.parse(raw)
        return {**without_held_out(record, bound), "sentences": tf.size(record["lengths"])}

    files = sorted(map(str, corpus.glob(shards.pattern)))
    records = tf.data.TFRecordDataset(files).map(read, tf.data.AUTOTUNE)
    records = records.filter(lambda record: holdout.bucket(record["document_id"]) >= bound)
    for batch in records.ragged_batch(_READ_AT_ONCE):  # one at a time takes far longer
        columns = {name: _rows(column) for name, column in batch.items()}
        yield from (dict(zip(columns, row)) for row in zip(*columns.values()))


def _rows(column: tf.Tensor | tf.RaggedTensor) -> list:
    return column.to_list() if isinstance(column, tf.RaggedTensor) else column.numpy().tolist()


def log_q(record: Record, weights: Mapping[str, float]) -> tf.Tensor:
    """log Q(d): the logarithm of the probability that a draw of the mixture has this record's passage as its document.

    Args:
      weights: of each task over the corpus that is drawn, its share of the draws divided by the size of its epoch.
    """
    terms = [tf.cast(TASKS[task].draws(record), tf.float32) * weight for task, weight in weights.items()]
    return tf.math.log(tf.add_n(terms))
