"""The task 'ict', the Inverse Cloze Task (Lee et al. 2019): a sentence asks for the passage that it was taken from."""

from __future__ import annotations

from collections.abc import Mapping

from retrieval.data.examples.corpus_tasks import ICT, PassagePairs
from retrieval.data.examples.task_kind import Given, register
from retrieval.data.examples.token_rows import Record, document_row, query_row, random_sentence
from retrieval.libraries import tf


@register
class InverseCloze(PassagePairs):
    """The query is a random sentence, the document `[CLS] title [SEP] the other sentences [SEP]`."""

    name = "ict"
    options = ("ict_removal",)

    def draws(self, record: Record) -> tf.Tensor:
        """Every passage of two sentences or more, once."""
        return record["counts"][ICT]

    def pair(
        self, record: Record, seed: tf.Tensor, lengths: Mapping[str, int], given: Given
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """As `PassagePairs.pair`. Chang et al. always take the sentence out of the document."""
        seeds = tf.random.split(seed, 2)
        start, end = random_sentence(record["lengths"], seeds[0])
        ids, removal = record["ids"], given.options["ict_removal"]
        rest = tf.concat([ids[:start], ids[end:]], 0)
        body = tf.cond(tf.random.stateless_uniform([], seeds[1]) < removal, lambda: rest, lambda: ids)
        query = query_row(ids[start:end], lengths["query"], given.specials)
        return query, document_row(record["title"], body, lengths["document"], given.specials)
