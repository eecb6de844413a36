"""Losses: embeddings or logits to one value per example; the caller owns the mean.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then the hard negatives), N of
these the hard negatives (K - 1), E embedding size, P tokens to predict or known positives of a query, V vocabulary, Z
size of a latent variable.
"""

import jax
import jax.numpy as jnp

from retrieval.arrays import on_every_device
from retrieval.errors import UserError, unknown_name
from retrieval.training.cross_entropy import Anchors, Candidates, cross_entropy
from retrieval.training.reranking import listwise_softmax

Metrics = dict[str, jax.Array]

# What in-batch softmax makes of a query's other positives in the batch: no negatives, or positives beside its own.
OTHER_POSITIVES = ("mask", "mean")


def in_batch_softmax(
    query_BE: jax.Array,
    document_BKE: jax.Array,
    document_ids_BK: jax.Array,
    log_q_BK: jax.Array | None,
    *,
    temperature: float = 1.0,
    symmetric: bool = False,
    positive_ids_BP: jax.Array | None = None,
    other_positives: str = "mask",
    block: int = 512,
) -> tuple[jax.Array, Metrics]:
    """Sampled softmax over all documents of the global batch (Chang et al. 2020, section 2).

    The logit of a document is score / temperature - log Q(document), the positive's too (Bengio & Senecal 2008; for
    in-batch candidates Yi et al. 2019): Q is the chance of being drawn, so a document is not pushed away for being
    drawn often. No positive of a query is its negative, by id, in whatever row and column it is: neither a copy of its
    own one, nor another that is known.

    Args:
      document_BKE: the positive is `document_BKE[:, 0]`.
      document_ids_BK: equal for copies of a document, in whatever column.
      log_q_BK: log Q, up to a constant; None for no correction.
      symmetric: whether to average with the softmax of each positive over the batch's queries. There the other queries
        that it is a positive of are no negatives, and nothing is corrected.
      positive_ids_BP: ids of all positives of a query that are known, its own among them; None for its own alone.
        An id may be there more than once, to fill a row up.
      other_positives: 'mask' leaves them out; with 'mean' the loss of a query is the mean over its positives in the
        batch, of each among itself and the negatives.
      block: documents that are compared at a time; it changes memory and time, not the result.

    Returns:
      The loss [B], and 'recall@1' [B]: 1 where the own positive's score (not corrected) is greater than that of every
      negative, else 0; a tie is a miss.

    Raises:
      UserError: the temperature or the block is not positive, or `other_positives` is unknown.
    """
    _check_temperature(temperature)
    if other_positives not in OTHER_POSITIVES:
        raise unknown_name("other_positives", other_positives, OTHER_POSITIVES)
    if block < 1:
        raise UserError(f"loss block {block}: must be at least 1")
    B, K, E = document_BKE.shape
    query_BE, document_BKE = query_BE.astype(jnp.float32), document_BKE.astype(jnp.float32)
    ids_B1 = document_ids_BK[:, :1]
    known_BP = ids_B1 if positive_ids_BP is None else positive_ids_BP
    options = (temperature, block, other_positives == "mean")
    bias_BK = jnp.zeros_like(document_ids_BK, jnp.float32) if log_q_BK is None else -jnp.asarray(log_q_BK, jnp.float32)
    documents = Candidates(
        document_BKE.reshape(B * K, E), bias_BK.reshape(B * K), document_ids_BK.reshape(B * K)[:, None]
    )
    queries = Anchors(query_BE, _numbers(ids_B1[:, 0], K), known_BP)
    loss_B, positive_B, rival_B = cross_entropy(queries, on_every_device(documents), *options)
    if symmetric:
        positives = Anchors(document_BKE[:, 0], _numbers(ids_B1[:, 0], 1), ids_B1)
        rivals = Candidates(query_BE, jnp.zeros_like(ids_B1[:, 0], jnp.float32), known_BP)
        loss_B = (loss_B + cross_entropy(positives, on_every_device(rivals), *options)[0]) / 2
    return loss_B, {"recall@1": (positive_B > rival_B).astype(jnp.float32)}


def triplet(
    query_BE: jax.Array,
    document_BKE: jax.Array,
    document_ids_BK: jax.Array,
    *,
    temperature: float = 1.0,
    margin: float = 1.0,
) -> tuple[jax.Array, Metrics]:
    """max(0, margin - (score of the positive - score of a negative)), the mean over an example's hard negatives
    (Lu et al. 2021, section 4.2). A score is inner product / temperature.

    Args, Returns and Raises: as of `multi_negative_nll`.
    """
    positive_B1, negative_BN, counts_BN = _scores(query_BE, document_BKE, document_ids_BK, temperature)
    loss_BN = jax.nn.relu(margin - (positive_B1 - negative_BN))
    return _mean(loss_BN, counts_BN), _ahead(positive_B1, negative_BN, counts_BN)


def two_way_nll(
    query_BE: jax.Array, document_BKE: jax.Array, document_ids_BK: jax.Array, *, temperature: float = 1.0
) -> tuple[jax.Array, Metrics]:
    """-log softmax of the positive against one negative (Xiong et al. 2021, ANCE), the mean over the hard negatives of
    an example: with one that was drawn at random, that one.

    Args, Returns and Raises: as of `multi_negative_nll`.
    """
    positive_B1, negative_BN, counts_BN = _scores(query_BE, document_BKE, document_ids_BK, temperature)
    loss_BN = jax.nn.softplus(negative_BN - positive_B1)
    return _mean(loss_BN, counts_BN), _ahead(positive_B1, negative_BN, counts_BN)


def multi_negative_nll(
    query_BE: jax.Array, document_BKE: jax.Array, document_ids_BK: jax.Array, *, temperature: float = 1.0
) -> tuple[jax.Array, Metrics]:
    """-log softmax of the positive among the documents of its own example; those of the others are no candidates.

    Args:
      document_BKE: the positive is `document_BKE[:, 0]`, the others are its hard negatives.
      document_ids_BK: equal for copies of a document. Copies of the positive do not count as negatives.

    Returns:
      The loss [B], 0 where no negative counts, and 'recall@1' [B]: 1 where the positive's score is greater than that of
      every negative that counts, else 0.

    Raises:
      UserError: the temperature is not positive, or there are no hard negatives.
    """
    scores = _scores(query_BE, document_BKE, document_ids_BK, temperature)
    loss_B, _ = listwise_softmax(jnp.concatenate(scores[:2], axis=1), document_ids_BK)
    return loss_B, _ahead(*scores)


# Losses of an example's own documents, which need hard negatives.
OWN_NEGATIVES = {"triplet": triplet, "two_way_nll": two_way_nll, "multi_negative_nll": multi_negative_nll}


def inner_products(query_BE: jax.Array, document_BKE: jax.Array) -> jax.Array:
    """The scores of an example's own documents, float32 [B, K]: what two towers say, for the losses of scores."""
    # The default precision on an accelerator would round the embeddings to bfloat16 or TF32.
    return jnp.einsum(
        "be,bke->bk",
        query_BE.astype(jnp.float32),
        document_BKE.astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )


def token_cross_entropy(
    logits_BPV: jax.Array, labels_BP: jax.Array, weights_BP: jax.Array, *, smoothing: float = 0.0
) -> tuple[jax.Array, Metrics]:
    """Cross-entropy of tokens: of the masked ones (Devlin et al. 2019), or of all that a decoder writes again.

    Each example's sum over its tokens is scaled by B / (tokens of the batch): the mean of the result over the batch is
    the mean over tokens, not over examples with few and many of them alike.

    Args:
      weights_BP: 1 for a token to predict, 0 for a place that is not used.
      smoothing: the share of the label that is spread over the whole vocabulary (Szegedy et al. 2016, section 7).

    Returns:
      The loss [B], and 'accuracy' [B], scaled likewise.

    Raises:
      UserError: the smoothing is not in [0, 1).
    """
    if not 0 <= smoothing < 1:
        raise UserError(f"label smoothing {smoothing}: must be 0 or more, and below 1")
    logits_BPV = logits_BPV.astype(jnp.float32)
    weights_BP = weights_BP.astype(jnp.float32)
    label_BPV = jnp.arange(logits_BPV.shape[-1]) == labels_BP[:, :, None]
    wanted_BP = jnp.where(label_BPV, logits_BPV, 0).sum(axis=-1)
    if smoothing:
        wanted_BP += smoothing * (logits_BPV.mean(axis=-1) - wanted_BP)
    loss_BP = jax.nn.logsumexp(logits_BPV, axis=-1) - wanted_BP
    hit_BP = logits_BPV.argmax(axis=-1) == labels_BP
    scale = len(weights_BP) / jnp.maximum(weights_BP.sum(), 1)
    return scale * (weights_BP * loss_BP).sum(axis=1), {"accuracy": scale * (weights_BP * hit_BP).sum(axis=1)}


def free_bits(divergence_BZ: jax.Array, least: float) -> jax.Array:
    """The KL divergence of a latent variable, [B], in nats, of which `least` in every dimension is free.

    Below it no gradient pushes the variable to say nothing (Kingma et al. 2016; Li et al. 2020, for Optimus).
    """
    return jnp.maximum(divergence_BZ, least).sum(axis=1)


def _scores(
    query_BE: jax.Array, document_BKE: jax.Array, document_ids_BK: jax.Array, temperature: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Scores of the positive [B, 1] and of the hard negatives [B, N], and which of these are no copy of it."""
    _check_temperature(temperature)
    if document_BKE.shape[1] < 2:
        raise UserError(f"a loss of hard negatives, but an example has {document_BKE.shape[1]} document: the positive")
    score_BK = inner_products(query_BE, document_BKE) / temperature
    return score_BK[:, :1], score_BK[:, 1:], document_ids_BK[:, 1:] != document_ids_BK[:, :1]


def _mean(value_BN: jax.Array, counts_BN: jax.Array) -> jax.Array:
    """The mean over the negatives that count, 0 where none does."""
    return jnp.where(counts_BN, value_BN, 0).sum(axis=1) / jnp.maximum(counts_BN.sum(axis=1), 1)


def _ahead(positive_B1: jax.Array, negative_BN: jax.Array, counts_BN: jax.Array) -> Metrics:
    return {"recall@1": ((positive_B1 > negative_BN) | ~counts_BN).all(axis=1).astype(jnp.float32)}


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise UserError(f"temperature {temperature}: must be greater than 0")


def _numbers(ids_B: jax.Array, K: int) -> jax.Array:
    """The place of each example's first document among the B * K of the batch."""
    return jnp.zeros_like(ids_B) + jnp.arange(0, len(ids_B) * K, K, dtype=ids_B.dtype)
