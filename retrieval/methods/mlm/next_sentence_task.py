"""The task 'next_sentence': BERT's pairs of texts, masked (Devlin et al. 2019, section 3.1 and appendix A.2).

Half of the time the second text follows the first in its passage. Else it is from a passage of another article.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from retrieval.data.examples.corpus_tasks import ICT, CorpusTask
from retrieval.data.examples.task_kind import Given, Maker, Stored, register
from retrieval.data.examples.token_rows import Record, Specials
from retrieval.libraries import tf
from retrieval.methods.mlm.mlm_task import continuing, mask_row

_log = logging.getLogger(__name__)

_OTHERS = 16  # passages before a record in its lane, one of which gives the random text


@register
class NextSentences(CorpusTask):
    """The first sentences of a passage, and those that follow them or a random text. Some tokens are masked."""

    name = "next_sentence"
    kind = "masked_pairs"

    def epoch(self, stored: Stored, negatives: int) -> int:
        """The passages of two sentences or more; those of one are left out, and counted in the log."""
        counts = stored.statistics.get("counts", {})
        size = stored.statistics["tasks"].get("ict", {}).get("pairs", 0)  # ICT, too, needs two sentences
        if not size:
            raise self.no_example("the corpus has no passage of two sentences")
        if counts.get("articles", 2) < 2:
            raise self.no_example("the corpus has one article, and a random sentence is of another one")
        if alone := counts.get("passages", size) - size:
            _log.info(
                "task '%s': %d passages are held out or have one sentence alone, and are left out", self.name, alone
            )
        return size

    def draws(self, record: Record) -> tf.Tensor:
        """As `TaskKind.draws`."""
        return record["counts"][ICT]

    def stream(self, records: tf.data.Dataset) -> tf.data.Dataset:
        """Each record with the passages before it: their tokens and lengths, as strings, and a hash of the title."""
        none = tf.zeros([_OTHERS], tf.int64), tf.fill([_OTHERS], ""), tf.fill([_OTHERS], "")

        def put_beside(before: tuple[tf.Tensor, ...], record: Record) -> tuple[tuple[tf.Tensor, ...], Record]:
            article = _article(record)
            own = article, tf.io.serialize_tensor(record["ids"]), tf.io.serialize_tensor(record["lengths"])
            after = tuple(tf.concat([[new], old[:-1]], 0) for new, old in zip(own, before))
            names = ("other_articles", "other_ids", "other_lengths")
            return after, {**record, "article": article, **dict(zip(names, before))}

        return records.scan(none, put_beside)

    def maker(self, given: Given) -> Maker:
        """As `TaskKind.maker`."""
        continues = continuing(given.vocabulary) if given.options.get("whole_word") else None
        return lambda record, seed, lengths: make_pair(record, seed, lengths, given.specials, continues)


def make_pair(
    record: Record,
    seed: tf.Tensor,
    lengths: Mapping[str, int],
    specials: Specials,
    continues: Sequence[bool] | None = None,
) -> Record:
    """`[CLS] first [SEP] second [SEP]`, masked, and whether the second text is a random one.

    A passage is cut between two of its sentences. What is too long loses the beginning of the first text and the end of
    the second. Where no passage of another article came before this one, the second text is the next.
    """
    cut_seed, class_seed, other_seed, start_seed, mask_seed = tf.unstack(tf.random.split(seed, 5))
    ends = tf.cumsum(record["lengths"])
    cut = ends[tf.random.stateless_uniform([], cut_seed, 0, tf.size(ends) - 1, tf.int32)]
    is_other = (record["other_articles"] != 0) & (record["other_articles"] != record["article"])
    is_random = tf.reduce_any(is_other) & (tf.random.stateless_uniform([], class_seed) < 0.5)

    def random_text() -> tf.Tensor:
        draws = tf.random.stateless_uniform([_OTHERS], other_seed)
        chosen = tf.argmax(tf.where(is_other, draws, -1.0))
        ids, sizes = (tf.io.parse_tensor(record[name][chosen], tf.int32) for name in ("other_ids", "other_lengths"))
        starts: Any = tf.cumsum(sizes, exclusive=True)
        return ids[starts[tf.random.stateless_uniform([], start_seed, 0, tf.size(starts), tf.int32)] :]

    first = record["ids"][:cut]
    second = tf.cond(is_random, random_text, lambda: record["ids"][cut:])
    room = lengths["text"] - 3
    second = second[: tf.maximum(room // 2, room - tf.size(first))]
    first = first[tf.maximum(0, tf.size(first) - (room - tf.size(second))) :]
    row = tf.concat([[specials.cls], first, [specials.sep], second, [specials.sep]], 0)
    between = tf.size(first) + 1
    places = tf.concat([tf.range(1, between), tf.range(between + 1, tf.size(row) - 1)], 0)
    masked = mask_row(row, places, mask_seed, specials, continues)
    return {**masked, "is_random": tf.cast(is_random, tf.int32)[None]}


def _article(record: Record) -> tf.Tensor:
    """A number above 0 for the article: a hash of its title; without one, of the passage."""
    name = tf.cond(tf.size(record["title"]) > 0, lambda: record["title"], lambda: record["ids"])
    return 1 + tf.strings.to_hash_bucket_fast(tf.io.serialize_tensor(name), 2**62)
