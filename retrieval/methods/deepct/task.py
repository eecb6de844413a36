"""The task 'deepct' (Dai & Callan 2019): which words of a labelled passage its query has.

The paper's label is the share of a passage's queries that have a word. Here each example has one of the queries, and
its labels are 0 or 1: the squared error of both has the same gradients on average.

A word is one or more word pieces. Words of one piece count as the same where their stems are; words of several pieces
are compared as they are. Stop words keep their labels: an index leaves them out anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import Stemmer

from retrieval.common.errors import UserError
from retrieval.common.libraries import tf
from retrieval.data.examples import example_kind
from retrieval.data.examples.example_kind import ExampleKind, Field, tokens, types
from retrieval.data.examples.task_kind import Maker, TaskInputs, register
from retrieval.data.examples.tasks.labelled_tasks import LabelledTask, documents
from retrieval.data.examples.token_rows import Record
from retrieval.data.tokenizers.vocab import Vocabulary

TERMS = ExampleKind(
    "terms",
    "passages whose words are weighed",
    {"text": tokens(), "targets": Field("float32"), "mask": Field("float32")},
    {"text_types": Field(shape=("text",))},
    lambda row, sep_id: {"text_types": types(row["text"], sep_id)},
)

_GOES_ON = "##"
_BASE = 31  # of the numbers that stand for words of several pieces


@register
class WeighedWords(LabelledTask):
    """The text is a positive; its targets are 1 for words of the query. Only a word's first piece counts."""

    name = "deepct"
    kind = TERMS

    def maker(self, inputs: TaskInputs) -> Maker:
        """As `TaskKind.maker`; nothing is random."""
        vocabulary = inputs.vocabulary
        continues = [token.startswith(_GOES_ON) for token in vocabulary.tokens]
        if not any(continues):
            way = "take a vocabulary of WordPiece, or set config.data.rates.deepct=0"
            raise UserError(f"task 'deepct': no token of the vocabulary begins with '##', as word pieces do: {way}")
        stems = stem_numbers(vocabulary)
        special = [vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id]

        def make(record: Record, seed: tf.Tensor, lengths: Mapping[str, int]) -> Record:
            (text,) = documents(record, tf.constant([0]), lengths["text"], inputs.specials)
            targets, mask = label(text, record["query"], continues, stems, special)
            return {"text": text, "targets": targets, "mask": mask}

        return make


def stem_numbers(vocabulary: Vocabulary) -> list[int]:
    """For each token of a vocabulary a number that tokens of one stem (Porter's) have in common."""
    stems = Stemmer.Stemmer("porter").stemWords(vocabulary.tokens)
    numbers: dict[str, int] = {}
    return [numbers.setdefault(stem, len(numbers)) for stem in stems]


def label(
    text: tf.Tensor, query: tf.Tensor, continues: Sequence[bool], stems: Sequence[int], special: Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Targets and the mask of the tokens of a text, float32 [N].

    Args:
      continues, stems: of each token of the vocabulary.
      special: tokens that are no word.
    """
    numbers, firsts, keys = _words(text, continues, stems)
    _, query_firsts, query_keys = _words(query, continues, stems)
    of_query = tf.boolean_mask(query_keys, tf.logical_not(_is_one_of(tf.gather(query, query_firsts), special)))
    hits = tf.reduce_any(keys[:, None] == of_query[None], axis=1)
    mask = tf.gather(firsts, numbers) == tf.range(tf.size(text))
    mask = tf.cast(mask & tf.logical_not(_is_one_of(text, special)), tf.float32)
    return tf.cast(tf.gather(hits, numbers), tf.float32) * mask, mask


def _is_one_of(ids: tf.Tensor, some: Sequence[int]) -> tf.Tensor:
    return tf.reduce_any(ids[:, None] == tf.constant(some, ids.dtype)[None], axis=1)


def _words(ids: tf.Tensor, continues: Sequence[bool], stems: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The number of each token's word [N]; of each word the place of its first token, and what it is known by [W]."""
    numbers, places = example_kind.words(ids, continues), tf.range(tf.size(ids))
    firsts = tf.math.segment_min(places, numbers)
    sizes = tf.math.segment_sum(tf.ones_like(places), numbers)
    powers = tf.pow(tf.constant(_BASE, tf.int64), tf.cast(places - tf.gather(firsts, numbers), tf.int64))
    spelled = tf.math.segment_sum(tf.cast(ids, tf.int64) * powers, numbers)
    stem = tf.gather(tf.constant(stems, tf.int64), tf.gather(ids, firsts))
    return numbers, firsts, tf.where(sizes == 1, stem, -1 - tf.abs(spelled))
