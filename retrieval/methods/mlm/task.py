"""The tasks 'mlm', masked texts, and 'next_sentence', masked pairs of texts (Devlin et al. 2019).

Of a pair the second text follows the first in its passage half of the time (section 3.1 and appendix A.2). Else it is
from a passage of another article.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from retrieval.common.libraries import tf
from retrieval.data.examples.example_kind import MASKED, PERCENT, ExampleKind, Field, choose, share, types
from retrieval.data.examples.task_kind import Maker, TaskData, TaskInputs, register
from retrieval.data.examples.tasks.corpus_tasks import ICT, CorpusTask
from retrieval.data.examples.token_rows import Record, Specials, single

_log = logging.getLogger(__name__)


def _made(row: Record, sep_id: int) -> Record:
    """The weights, and the types of the text as it was: a token at random, in place of one of the first text, may be
    [SEP]."""
    made = MASKED.make(row, sep_id)
    places, labels = (tf.boolean_mask(row[name], made["weights"] > 0) for name in ("positions", "labels"))
    return {**made, "text_types": types(tf.tensor_scatter_nd_update(row["text"], places[:, None], labels), sep_id)}


MASKED_PAIRS = ExampleKind(
    "masked_pairs",
    "masked pairs of texts, which follow each other or not",
    {**MASKED.fields, "is_random": Field()},
    {**MASKED.made, "text_types": Field(shape=("text",))},
    _made,
    needs=MASKED.needs,
)

_OTHERS = 16  # passages before a record in its lane, one of which gives the random text


@register
class MaskedTexts(CorpusTask):
    """A passage, some of whose tokens are to be predicted."""

    name = "mlm"
    kind = MASKED

    def maker(self, inputs: TaskInputs) -> Maker:
        """As `TaskKind.maker`."""
        return lambda record, seed, lengths: mask(record, seed, lengths, inputs.specials)


def mask(record: Record, seed: tf.Tensor, lengths: Mapping[str, int], specials: Specials) -> Record:
    """15 % of a passage's tokens are to be predicted. Of these 80 % are replaced by [MASK], 10 % by a random token, and
    10 % stay.
    """
    ids = single(record["ids"], lengths["text"], specials)
    # [CLS] and [SEP], the two ends, are never chosen.
    before, _, behind = map(len, specials.template)
    return mask_row(ids, tf.range(before, tf.size(ids) - behind), seed, specials)


def mask_row(ids: tf.Tensor, places: tf.Tensor, seed: tf.Tensor, specials: Specials) -> Record:
    """The same of a row that is there already.

    Args:
      places: where in the row a token may be chosen, in order.
    """
    seeds = tf.random.split(seed, 3)
    count = tf.maximum(1, share(tf.size(places), PERCENT))
    positions = tf.gather(places, choose(tf.size(places), count, seeds[0]))
    labels = tf.gather(ids, positions)
    count = tf.size(positions)
    roll = tf.random.stateless_uniform([count], seeds[1])
    # Of all tokens but that of padding, which no text has.
    others = specials.vocab_size - (specials.pad >= 0)
    random_ids = tf.random.stateless_uniform([count], seeds[2], 0, others, tf.int32)
    random_ids += tf.cast((specials.pad >= 0) & (random_ids >= specials.pad), tf.int32)
    replaced = tf.where(roll < 0.8, specials.mask, tf.where(roll < 0.9, random_ids, labels))
    text = tf.tensor_scatter_nd_update(ids, positions[:, None], replaced)
    return {"text": text, "positions": positions, "labels": labels}


@register
class NextSentences(CorpusTask):
    """The first sentences of a passage, and those that follow them or a random text. Some tokens are masked."""

    name = "next_sentence"
    kind = MASKED_PAIRS

    def epoch(self, stored: TaskData, negatives: int) -> int:
        """The passages of two sentences or more; those of one are left out, and counted in the log."""
        counts = stored.statistics.get("counts", {})
        size = stored.statistics["tasks"].get("ict", {}).get("pairs", 0)  # ICT, too, needs two sentences
        if not size or counts.get("articles", 2) < 2:
            raise self.no_example("the corpus has no passage of two sentences, or no second article for a random one")
        if alone := counts.get("passages", size) - size:
            _log.info("task '%s': left out are %d passages, held out or of one sentence", self.name, alone)
        return size

    def draws(self, record: Record) -> tf.Tensor:
        """As `TaskKind.draws`."""
        return record["counts"][ICT]

    def stream(self, records: tf.data.Dataset) -> tf.data.Dataset:
        """Each record with the passages before it: their tokens and lengths, as strings, and a hash of the title."""
        none = tf.zeros([_OTHERS], tf.int64), tf.fill([_OTHERS], ""), tf.fill([_OTHERS], "")

        def put_beside(before: tuple[tf.Tensor, ...], record: Record) -> tuple[tuple[tf.Tensor, ...], Record]:
            article = _article(record)
            own = article, *(tf.io.serialize_tensor(record[name]) for name in ("ids", "lengths"))
            after = tuple(tf.concat([[new], old[:-1]], 0) for new, old in zip(own, before))
            names = ("other_articles", "other_ids", "other_lengths")
            return after, {**record, "article": article, **dict(zip(names, before))}

        return records.scan(none, put_beside)

    def maker(self, inputs: TaskInputs) -> Maker:
        """As `TaskKind.maker`."""
        return lambda record, seed, lengths: make_pair(record, seed, lengths, inputs.specials)


def make_pair(record: Record, seed: tf.Tensor, lengths: Mapping[str, int], specials: Specials) -> Record:
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
    before, between, behind = specials.template
    room = lengths["text"] - specials.template.size(parted=True)
    second = second[: tf.maximum(room // 2, room - tf.size(first))]
    first = first[tf.maximum(0, tf.size(first) - (room - tf.size(second))) :]
    row = tf.concat([before, first, between, second, behind], 0)
    end = len(before) + tf.size(first)
    places = tf.concat([tf.range(len(before), end), tf.range(end + len(between), tf.size(row) - len(behind))], 0)
    masked = mask_row(row, places, mask_seed, specials)
    return {**masked, "is_random": tf.cast(is_random, tf.int32)[None]}


def _article(record: Record) -> tf.Tensor:
    """A number above 0 for the article: a hash of its title; without one, of the passage."""
    name = tf.cond(tf.size(record["title"]) > 0, lambda: record["title"], lambda: record["ids"])
    return 1 + tf.strings.to_hash_bucket_fast(tf.io.serialize_tensor(name), 2**62)
