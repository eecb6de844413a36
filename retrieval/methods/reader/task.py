"""The task 'spans': questions with retrieved paragraphs, in which their answers are to be found.

The stage `spans` writes the records; `span_shards` says what they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrieval import files
from retrieval.data.examples.task_kind import Given, Maker, Shards, Stored, TaskKind, register
from retrieval.data.examples.token_rows import Record
from retrieval.libraries import tf
from retrieval.methods.reader import span_shards

FIRST, POSITIVE = "first", "positive"


def _features() -> Mapping[str, Any]:
    dtypes = {"rows": tf.int64, "row_lengths": tf.int64, "spans": tf.int64, "retrieved": tf.float32}
    return {name: tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True) for name, dtype in dtypes.items()}


def _compared() -> Mapping[str, Any]:
    names = ("question", "candidates", "holds")
    return {name: tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True) for name in names}


@register
class AnswerSpans(TaskKind):
    """The rows of some paragraphs, and where in them the answers stand."""

    name = "spans"
    kind = "spans"
    is_labelled = True
    shards = Shards(span_shards.PATTERN, _features, _compared)
    options = ("paragraphs", "draw")

    def epoch(self, stored: Stored, negatives: int) -> int:
        """As `TaskKind.epoch`: every question that was written."""
        if not stored.labelled:
            raise self.no_example("no stage has written questions with paragraphs: put 'spans' before 'train'")
        return files.read_json(stored.labelled / "stats.json")["questions"]

    def maker(self, given: Given) -> Maker:
        """As `TaskKind.maker`."""
        positive_first = given.options["draw"] == POSITIVE

        def make(record: Record, seed: tf.Tensor, lengths: Mapping[str, int]) -> Record:
            order = _positive_first(record, seed) if positive_first else tf.range(tf.size(record["row_lengths"]))
            return example(record, order, lengths)

        return make


def _positive_first(record: Record, seed: tf.Tensor) -> tf.Tensor:
    """A paragraph with an answer, then those without, then the others with one; each part at random."""
    count = tf.size(record["row_lengths"])
    holders = tf.reshape(record["spans"], [-1, 3])[:, 0]
    holds = tf.reduce_any(tf.range(count)[:, None] == holders[None], axis=1)
    drawn = tf.random.stateless_uniform([count], seed)
    positive = tf.argmax(tf.where(holds, drawn, -1.0), output_type=tf.int32)
    places = tf.where(tf.range(count) == positive, -1.0, drawn + tf.where(holds, 1.0, 0.0))
    return tf.argsort(places)


def example(record: Record, order: tf.Tensor, lengths: Mapping[str, int]) -> Record:
    """The first paragraphs of an order, and the spans in them, numbered as they stand in the example.

    Where there are fewer paragraphs, or spans, or scores, than an example has room for, the rest is empty: rows of
    zeros, spans of -1, scores of -inf. So it is with candidates: rows of -1. `holds` becomes a 1 for each that does.
    """
    K, length, S, N = (lengths[name] for name in ("paragraph", "pair", "spans", "retrieved"))
    ragged: Any = tf.RaggedTensor  # whose constructors the stubs lack
    rows = ragged.from_row_lengths(record["rows"], record["row_lengths"]).to_tensor(shape=[None, length])
    chosen = tf.pad(order[:K], [[0, tf.maximum(0, K - tf.size(order))]], constant_values=-1)
    rows = tf.concat([rows, tf.zeros([1, length], rows.dtype)], 0)  # the last is that of -1
    spans = tf.reshape(record["spans"], [-1, 3])
    is_there = spans[:, :1] == chosen[None]
    spans = tf.concat([tf.argmax(is_there, axis=1, output_type=tf.int32)[:, None], spans[:, 1:]], 1)
    kept: Any = tf.boolean_mask(spans, tf.reduce_any(is_there, axis=1))[:S]
    scores = record["retrieved"][:N]
    empty: Any = [[0, S - tf.shape(kept)[0]], [0, 0]]
    return {
        "pair": tf.gather(rows, tf.where(chosen < 0, tf.shape(rows)[0] - 1, chosen)),
        "spans": tf.pad(kept, empty, constant_values=-1),
        "paragraph": tf.maximum(chosen, 0),
        "retrieved": tf.pad(scores, [[0, N - tf.size(scores)]], constant_values=-float("inf")),
        **(_of_tower(record, lengths) if "candidates" in lengths else {}),
    }


def _of_tower(record: Record, lengths: Mapping[str, int]) -> Record:
    """What the question tower is trained with."""
    N, question = lengths["candidates"], record["question"][: lengths["question"]]
    candidates = record["candidates"][:N]
    return {
        "question": tf.pad(question, [[0, lengths["question"] - tf.size(question)]]),
        "candidates": tf.pad(candidates, [[0, N - tf.size(candidates)]], constant_values=-1),
        "holds": tf.cast(tf.reduce_any(tf.range(N)[:, None] == record["holds"][None], axis=1), tf.int32),
    }
