"""The pre-training tasks of Chang et al. 2020, section 3, as pure functions of a record, a seed and the lengths.

A record is what `shards` writes: a passage (`ids`, and the `lengths` of its sentences), the `title` of its article, a
lead (`lead_ids`, `lead_lengths`: of its own article in the passage shards, of an article it links to in the link
shards), `document_id` and `counts`. Everything is a TensorFlow tensor; randomness comes from `seed` alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from retrieval.data.tokenizers.vocab import Vocabulary

Record = Mapping[str, tf.Tensor]

# Of a text's tokens, those that a masked language model predicts, in percent (Devlin et al. 2019).
MASKED = 15


class Specials(NamedTuple):
    """The ids of a vocabulary that the tasks need."""

    cls: int
    sep: int
    mask: int
    vocab_size: int

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "Specials":
        """Reads them off a vocabulary."""
        return cls(vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id, len(vocabulary))


def ict(record: Record, seed: tf.Tensor, lengths: Mapping[str, int], specials: Specials, removal: float) -> Record:
    """Inverse Cloze Task: the query is a random sentence, the document `[CLS] title [SEP] the other sentences [SEP]`.

    Args:
      removal: probability that the sentence is left out of the document: 1.0 in Chang et al., 0.9 in ORQA.
    """
    seeds = tf.random.split(seed, 2)
    start, end = _random_sentence(record["lengths"], seeds[0])
    ids = record["ids"]
    rest = tf.concat([ids[:start], ids[end:]], 0)
    body = tf.cond(tf.random.stateless_uniform([], seeds[1]) < removal, lambda: rest, lambda: ids)
    return {
        "query": _single(ids[start:end], lengths["query"], specials),
        "document": _pair(record["title"], body, lengths["document"], specials),
    }


def lead_to_passage(record: Record, seed: tf.Tensor, lengths: Mapping[str, int], specials: Specials) -> Record:
    """The query is a random sentence of the lead, the document `[CLS] passage [SEP]`.

    On the passage shards this is Body First Selection (the lead of the passage's own article), on the link shards
    Wiki Link Prediction (the lead of an article that the passage links to).
    """
    start, end = _random_sentence(record["lead_lengths"], seed)
    return {
        "query": _single(record["lead_ids"][start:end], lengths["query"], specials),
        "document": _single(record["ids"], lengths["document"], specials),
    }


def mlm(
    record: Record,
    seed: tf.Tensor,
    lengths: Mapping[str, int],
    specials: Specials,
    continues: Sequence[bool] | None = None,
) -> Record:
    """Masked language model (Devlin et al. 2019): 15 % of a passage's tokens are to be predicted; of these 80 % are
    replaced by [MASK], 10 % by a random token, 10 % stay.

    Args:
      continues: for each id of the vocabulary, whether it goes on with the word of the token before it: a word is then
        masked whole or not at all (BERT's later models). None masks tokens.
    """
    seeds = tf.random.split(seed, 3)
    ids = _single(record["ids"], lengths["text"], specials)
    count = tf.maximum(1, share(tf.size(ids) - 2, MASKED))
    # [CLS] and [SEP], the two ends, are never chosen.
    words = tf.range(tf.size(ids) - 2) if continues is None else _words(ids[1:-1], continues)
    positions = _choose(words, count, seeds[0]) + 1
    labels = tf.gather(ids, positions)
    count = tf.size(positions)
    roll = tf.random.stateless_uniform([count], seeds[1])
    # From 1 on: 0 is padding, which would be no token to the encoder, and take away the place that is to be predicted.
    random_ids = tf.random.stateless_uniform([count], seeds[2], 1, specials.vocab_size, tf.int32)
    replaced = tf.where(roll < 0.8, specials.mask, tf.where(roll < 0.9, random_ids, labels))
    text = tf.tensor_scatter_nd_update(ids, positions[:, None], replaced)
    return {"text": text, "positions": positions, "labels": labels}


def share(count: Any, percent: int) -> Any:
    """So many percent of a count, an integer or a tensor of integers: rounded, and halves to the even number.

    In integers, for a row has as many places as this says of its length, and 28.5 may be more or less in float32.
    """
    hundredths = count * percent
    return (hundredths + 49 + hundredths // 100 % 2) // 100


def labelled(record: Record, seed: tf.Tensor, lengths: Mapping[str, int], specials: Specials, weight: float) -> Record:
    """Fine-tuning (section 4.1): the question, and `[CLS] sentence [SEP] passage [SEP]` of each document.

    A record is what `pairs` writes. The first document is the positive; for the others, of which there are
    `lengths["document_id"] - 1`, negatives are drawn. Where the record has fewer, each is taken before one is again.

    Args:
      weight: the task's rate divided by the size of its epoch: how often a record is drawn.
    """
    negatives = lengths["document_id"] - 1
    order = tf.argsort(tf.random.stateless_uniform([tf.size(record["document_id"]) - 1], seed))
    drawn = tf.gather(order, tf.range(negatives) % tf.maximum(1, tf.size(order))) + 1 if negatives else []
    chosen = tf.concat([[0], tf.cast(drawn, tf.int32)], 0)
    ragged: Any = tf.RaggedTensor  # whose constructors the stubs lack
    titles = ragged.from_row_lengths(record["titles"], record["title_lengths"])
    texts = ragged.from_row_lengths(record["texts"], record["text_lengths"])
    documents = [
        _pair(titles[chosen[place]], texts[chosen[place]], lengths["document"], specials)
        for place in range(negatives + 1)
    ]
    counts = tf.gather(tf.reshape(record["counts"], [-1, 3]), chosen)
    # As a positive; with negatives, as a positive of the records that have some, and as one of so many negatives.
    times = counts[:, 1] + negatives * counts[:, 2] if negatives else counts[:, 0]
    return {
        "query": _single(record["query"], lengths["query"], specials),
        "document": tf.stack([tf.pad(ids, [[0, lengths["document"] - tf.size(ids)]]) for ids in documents]),
        "document_id": tf.gather(record["document_id"], chosen),
        "log_q": tf.math.log(times * weight),
    }


def positive_ids(known: tf.Tensor | None, own: tf.Tensor, count: int) -> tf.Tensor:
    """The ids of a query's known positives, [count], filled up with that of its own; of the corpus, that alone."""
    ids = own[None] if known is None else known
    return tf.concat([ids, tf.fill([count - tf.size(ids)], own)], 0)


def log_q(counts: tf.Tensor, weights: Mapping[int, float]) -> tf.Tensor:
    """log Q(d): the probability that a draw of the mixture has this passage as its document.

    Args:
      counts: how often an epoch of each task draws the passage, [ICT, BFS, WLP].
      weights: for each column of `counts` in the mixture, its rate divided by the size of the task's epoch.
    """
    terms = [tf.cast(counts[column], tf.float32) * weight for column, weight in weights.items()]
    return tf.math.log(tf.add_n(terms))


def _words(ids: tf.Tensor, continues: Sequence[bool]) -> tf.Tensor:
    """The number of each token's word: 0, 1, ..."""
    begins = tf.logical_not(tf.gather(tf.constant(continues), ids))
    return tf.maximum(0, tf.cumsum(tf.cast(begins, tf.int32)) - 1)


def _choose(words: tf.Tensor, count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The tokens of random words, in the text's order: of one word after the other, if `count` still has room for it.

    Where all words are longer, so many tokens of one: a text without a masked one would teach nothing.
    """
    sizes = tf.math.segment_sum(tf.ones_like(words), words)
    draws = tf.random.stateless_uniform([tf.size(words)], seed)
    order = tf.argsort(draws[: tf.size(sizes)], stable=True)
    taken = _fitting(tf.gather(sizes, order), count)
    taken = tf.where(tf.reduce_any(taken), taken, tf.range(tf.size(order)) == 0)
    taken = tf.gather(taken, tf.math.invert_permutation(order))
    return tf.cast(tf.where(tf.gather(taken, words))[:count, 0], tf.int32)


def _fitting(sizes: tf.Tensor, room: tf.Tensor) -> tf.Tensor:
    """Which of some words are taken, one after the other: each that there is still room for."""

    def fit(taken: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        left = room - tf.reduce_sum(tf.where(taken, sizes, 0))
        return tf.logical_not(taken) & (sizes <= left), left

    def take(taken: tf.Tensor) -> tuple[tf.Tensor]:
        # All up to the first that is too long for what those before it leave: few turns, and not one for every word.
        may_be, left = fit(taken)
        return (taken | may_be & (tf.cumsum(tf.where(may_be, sizes, 0)) <= left),)

    return tf.while_loop(lambda taken: tf.reduce_any(fit(taken)[0]), take, (tf.zeros_like(sizes, tf.bool),))[0]


def _random_sentence(lengths: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Start and end, in tokens, of one of the sentences."""
    index = tf.random.stateless_uniform([], seed, 0, tf.size(lengths), tf.int32)
    end = tf.cumsum(lengths)[index]
    return end - lengths[index], end


def _single(ids: tf.Tensor, length: int, specials: Specials) -> tf.Tensor:
    """`Vocabulary.single` in TensorFlow."""
    return tf.concat([[specials.cls], ids[: length - 2], [specials.sep]], 0)


def _pair(first: tf.Tensor, second: tf.Tensor, length: int, specials: Specials) -> tf.Tensor:
    """`Vocabulary.pair` in TensorFlow."""
    room = length - 3
    half = (room + tf.cast(tf.size(first) > tf.size(second), tf.int32)) // 2
    first = first[: tf.maximum(half, room - tf.size(second))]
    rest = second[: room - tf.size(first)]
    pair = tf.concat([[specials.cls], first, [specials.sep], rest, [specials.sep]], 0)
    return tf.cond(tf.size(first) > 0, lambda: pair, lambda: _single(second, length, specials))
