"""Losses of a reranker: the scores of a query's candidates to one value per query; the caller owns the mean.

Letters of shapes: B queries of the global batch, K candidates of each (the positive, then the hard negatives), C
classes of a candidate (not relevant, relevant). Copies of the positive, by id, count in no loss.
"""

import jax
import jax.numpy as jnp

Metrics = dict[str, jax.Array]


def binary_cross_entropy(score_BK: jax.Array, document_ids_BK: jax.Array) -> tuple[jax.Array, Metrics]:
    """Pointwise: -log sigmoid(score) of the positive, -log sigmoid(-score) of a negative; the mean over candidates.

    Returns:
      The loss [B], and what `compared` says of the scores.
    """
    score_BK = score_BK.astype(jnp.float32)
    sign_K = jnp.where(jnp.arange(score_BK.shape[1]) == 0, -1.0, 1.0)
    return _mean(jax.nn.softplus(sign_K * score_BK), document_ids_BK), compared(score_BK, document_ids_BK)


def class_cross_entropy(logit_BKC: jax.Array, document_ids_BK: jax.Array) -> tuple[jax.Array, Metrics]:
    """Pointwise: -log softmax of a candidate's class, 1 of the positive and 0 of a negative (Nogueira & Cho 2019).

    A candidate's score is log p(relevant). The loss is the mean over candidates.

    Returns:
      As `binary_cross_entropy`.
    """
    log_BKC = jax.nn.log_softmax(logit_BKC.astype(jnp.float32))
    is_positive_K = jnp.arange(log_BKC.shape[1]) == 0
    loss_BK = -jnp.where(is_positive_K, log_BKC[:, :, 1], log_BKC[:, :, 0])
    return _mean(loss_BK, document_ids_BK), compared(log_BKC[:, :, 1], document_ids_BK)


def listwise_softmax(score_BK: jax.Array, document_ids_BK: jax.Array) -> tuple[jax.Array, Metrics]:
    """-log softmax of the positive among its query's candidates; 0 where no negative counts.

    Returns:
      As `binary_cross_entropy`.
    """
    score_BK = score_BK.astype(jnp.float32)
    counted_BK = jnp.where(counts(document_ids_BK), score_BK, -jnp.inf)
    return jax.nn.logsumexp(counted_BK, axis=1) - score_BK[:, 0], compared(score_BK, document_ids_BK)


def counts(document_ids_BK: jax.Array) -> jax.Array:
    """Which candidates are no copy of the positive beside it, bool [B, K]; the positive itself is among them."""
    is_positive_K = jnp.arange(document_ids_BK.shape[1]) == 0
    return (document_ids_BK != document_ids_BK[:, :1]) | is_positive_K


def compared(score_BK: jax.Array, document_ids_BK: jax.Array) -> Metrics:
    """What the scores of a query's candidates do, each [B]: metrics of every loss of candidates.

    Returns:
      'recall@1': 1 where the positive's score is greater than that of every negative, else 0; a tie is a miss.
      'spread': the standard deviation of the scores. Near 0 the model says the same of every candidate.
    """
    counts_BK = counts(document_ids_BK)
    rival_B = jnp.where(counts_BK[:, 1:], score_BK[:, 1:], -jnp.inf).max(axis=1, initial=-jnp.inf)
    mean_B = _mean(score_BK, document_ids_BK)
    spread_B = jnp.sqrt(_mean(jnp.square(score_BK - mean_B[:, None]), document_ids_BK))
    return {"recall@1": (score_BK[:, 0] > rival_B).astype(jnp.float32), "spread": spread_B}


def _mean(value_BK: jax.Array, document_ids_BK: jax.Array) -> jax.Array:
    """The mean over the candidates that count."""
    counts_BK = counts(document_ids_BK)
    return jnp.where(counts_BK, value_BK, 0).sum(axis=1) / counts_BK.sum(axis=1)
