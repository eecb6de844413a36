"""Losses of an example's own documents: its positive against its hard negatives, never against another example's.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then N hard negatives). Copies of
the positive, by id, do not count as negatives. Where no negative counts, the loss is 0.
"""

import jax
import jax.numpy as jnp

from retrieval.training.candidates import compared, counts, divided, mean_of_negatives
from retrieval.training.loss_kind import LOSSES, SCORES, Batch, Loss, Metrics


def two_way_nll(score_BK: jax.Array, batch: Batch, *, temperature: float = 1.0) -> tuple[jax.Array, Metrics]:
    """-log softmax of the positive against one negative (Xiong et al. 2021, ANCE), the mean over the hard negatives of
    an example: with one that was drawn at random, that one.

    Args and Raises: as of `multi_negative_nll`.
    """
    ids_BK, score_BK = batch["document_id"], divided(score_BK, temperature)
    loss_BN = jax.nn.softplus(score_BK[:, 1:] - score_BK[:, :1])
    return mean_of_negatives(loss_BN, ids_BK), compared(score_BK, ids_BK)


def multi_negative_nll(score_BK: jax.Array, batch: Batch, *, temperature: float = 1.0) -> tuple[jax.Array, Metrics]:
    """-log softmax of the positive among the documents of its own example: the listwise loss of rerankers.

    Args:
      score_BK: the positive's is `score_BK[:, 0]`.
      batch: its `document_id` [B, K] is equal for copies of a document.

    Returns:
      The loss [B], and what `compared` says of the scores.

    Raises:
      UserError: the temperature is not positive, or there are no hard negatives.
    """
    ids_BK, score_BK = batch["document_id"], divided(score_BK, temperature)
    counted_BK = jnp.where(counts(ids_BK), score_BK, -jnp.inf)
    return jax.nn.logsumexp(counted_BK, axis=1) - score_BK[:, 0], compared(score_BK, ids_BK)


LOSSES.register(
    "two_way_nll", Loss(two_way_nll, SCORES, "the positive against each hard negative alone", needs_negatives=True)
)
LOSSES.register(
    "multi_negative_nll",
    Loss(multi_negative_nll, SCORES, "softmax of the positive among its own example's documents", needs_negatives=True),
)
