"""The task 'mlm', the masked language model (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retrieval.data.examples.corpus_tasks import CorpusTask
from retrieval.data.examples.masking import MASKED, choose, share, words
from retrieval.data.examples.task_kind import Given, Maker, register
from retrieval.data.examples.token_rows import Record, Specials, single
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.libraries import tf


@register
class MaskedTexts(CorpusTask):
    """A passage, some of whose tokens are to be predicted."""

    name = "mlm"
    kind = "masked"
    options = ("whole_word",)

    def maker(self, given: Given) -> Maker:
        """As `TaskKind.maker`."""
        continues = continuing(given.vocabulary) if given.options["whole_word"] else None
        return lambda record, seed, lengths: mask(record, seed, lengths, given.specials, continues)


def mask(
    record: Record,
    seed: tf.Tensor,
    lengths: Mapping[str, int],
    specials: Specials,
    continues: Sequence[bool] | None = None,
) -> Record:
    """15 % of a passage's tokens are to be predicted. Of these 80 % are replaced by [MASK], 10 % by a random token, and
    10 % stay.

    Args:
      continues: for each id of the vocabulary, whether it goes on with the word of the token before it: a word is then
        masked whole or not at all (BERT's later models). None masks tokens.
    """
    ids = single(record["ids"], lengths["text"], specials)
    # [CLS] and [SEP], the two ends, are never chosen.
    return mask_row(ids, tf.range(1, tf.size(ids) - 1), seed, specials, continues)


def mask_row(
    ids: tf.Tensor, places: tf.Tensor, seed: tf.Tensor, specials: Specials, continues: Sequence[bool] | None = None
) -> Record:
    """The same of a row that is there already.

    Args:
      places: where in the row a token may be chosen, in order.
    """
    if specials.mask < 0:
        raise UserError("masked tokens are trained, and the vocabulary has no mask token: take one that has")
    seeds = tf.random.split(seed, 3)
    count = tf.maximum(1, share(tf.size(places), MASKED))
    units = tf.range(tf.size(places)) if continues is None else words(tf.gather(ids, places), continues)
    positions = tf.gather(places, choose(units, count, seeds[0]))
    labels = tf.gather(ids, positions)
    count = tf.size(positions)
    roll = tf.random.stateless_uniform([count], seeds[1])
    # From 1 on: 0 is padding, which would be no token to the encoder, and take away the place that is to be predicted.
    random_ids = tf.random.stateless_uniform([count], seeds[2], 1, specials.vocab_size, tf.int32)
    replaced = tf.where(roll < 0.8, specials.mask, tf.where(roll < 0.9, random_ids, labels))
    text = tf.tensor_scatter_nd_update(ids, positions[:, None], replaced)
    return {"text": text, "positions": positions, "labels": labels}


def continuing(vocabulary: Vocabulary) -> list[bool]:
    """Which tokens go on with the word of the token before them."""
    continues = [token.startswith("##") for token in vocabulary.tokens]
    if not any(continues):
        raise UserError(
            "config.data.whole_word=True, but no token of the vocabulary begins with '##', WordPiece's mark of a word "
            "that goes on: set config.data.whole_word=False"
        )
    return continues
