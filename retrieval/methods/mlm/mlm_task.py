"""The task 'mlm', the masked language model (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping

from retrieval.data.examples.corpus_tasks import CorpusTask
from retrieval.data.examples.example_kind import ExampleKind, Field
from retrieval.data.examples.masking import PERCENT, choose, share
from retrieval.data.examples.task_kind import Given, Maker, register
from retrieval.data.examples.token_rows import Record, Specials, single
from retrieval.errors import UserError
from retrieval.libraries import tf

MASKED = ExampleKind(
    "masked",
    "masked texts",
    {"text": Field(side="document"), "positions": Field(), "labels": Field()},
    {"weights": Field("float32", ("positions",))},
    # 1 for a position to predict, and 0 for padding. The first token, [CLS], is never predicted.
    lambda row, sep_id: {"weights": tf.cast(row["positions"] > 0, tf.float32)},
)


def masked_lengths(text: int) -> dict[str, int]:
    """The lengths of the fields: as many positions as a full row has masked tokens."""
    masked = max(1, share(text - 2, PERCENT))
    return {"text": text, "positions": masked, "labels": masked}


@register
class MaskedTexts(CorpusTask):
    """A passage, some of whose tokens are to be predicted."""

    name = "mlm"
    kind = MASKED

    def maker(self, given: Given) -> Maker:
        """As `TaskKind.maker`."""
        return lambda record, seed, lengths: mask(record, seed, lengths, given.specials)


def mask(record: Record, seed: tf.Tensor, lengths: Mapping[str, int], specials: Specials) -> Record:
    """15 % of a passage's tokens are to be predicted. Of these 80 % are replaced by [MASK], 10 % by a random token, and
    10 % stay.
    """
    ids = single(record["ids"], lengths["text"], specials)
    # [CLS] and [SEP], the two ends, are never chosen.
    return mask_row(ids, tf.range(1, tf.size(ids) - 1), seed, specials)


def mask_row(ids: tf.Tensor, places: tf.Tensor, seed: tf.Tensor, specials: Specials) -> Record:
    """The same of a row that is there already.

    Args:
      places: where in the row a token may be chosen, in order.
    """
    if specials.mask < 0:
        raise UserError("masked tokens are trained, and the vocabulary has no mask token: take one that has")
    seeds = tf.random.split(seed, 3)
    count = tf.maximum(1, share(tf.size(places), PERCENT))
    positions = tf.gather(places, choose(tf.size(places), count, seeds[0]))
    labels = tf.gather(ids, positions)
    count = tf.size(positions)
    roll = tf.random.stateless_uniform([count], seeds[1])
    # From 1 on: 0 is padding, which would be no token to the encoder, and take away the place that is to be predicted.
    random_ids = tf.random.stateless_uniform([count], seeds[2], 1, specials.vocab_size, tf.int32)
    replaced = tf.where(roll < 0.8, specials.mask, tf.where(roll < 0.9, random_ids, labels))
    text = tf.tensor_scatter_nd_update(ids, positions[:, None], replaced)
    return {"text": text, "positions": positions, "labels": labels}
