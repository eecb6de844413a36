"""Losses of a student that learns a teacher's scores of a query's candidates; the caller owns the mean.

Letters of shapes: B queries of the global batch, K candidates of each (the positive, then the hard negatives). Copies
of the positive, by id, count in no loss.
"""

import jax
import jax.numpy as jnp

from retrieval.errors import UserError
from retrieval.training.reranking import Metrics, compared, counts


def margin_mse(score_BK: jax.Array, teacher_BK: jax.Array, document_ids_BK: jax.Array) -> tuple[jax.Array, Metrics]:
    """The squared difference of the student's and the teacher's margin between the positive and a negative, the mean
    over negatives (Hofstätter et al. 2020).

    Args:
      score_BK, teacher_BK: of the same candidates, each on a scale of its own.

    Returns:
      The loss [B], 0 where no negative counts, and what `reranking.compared` says of the student's scores.

    Raises:
      UserError: there are no hard negatives.
    """
    _check_negatives(score_BK)
    score_BK, teacher_BK = score_BK.astype(jnp.float32), teacher_BK.astype(jnp.float32)
    difference_BK = (score_BK[:, :1] - score_BK) - (teacher_BK[:, :1] - teacher_BK)
    negative_BN = counts(document_ids_BK)[:, 1:]
    total_B = jnp.where(negative_BN, jnp.square(difference_BK[:, 1:]), 0).sum(axis=1)
    return total_B / jnp.maximum(negative_BN.sum(axis=1), 1), compared(score_BK, document_ids_BK)


def kl_divergence(
    score_BK: jax.Array, teacher_BK: jax.Array, document_ids_BK: jax.Array, *, temperature: float = 1.0
) -> tuple[jax.Array, Metrics]:
    """KL(teacher || student) of the softmax over a query's candidates, times temperature^2 (Hinton et al. 2015).

    Args:
      score_BK, teacher_BK: as in `margin_mse`.
      temperature: divides the scores of both; the factor keeps the size of the gradient.

    Returns:
      As `margin_mse`.

    Raises:
      UserError: there are no hard negatives, or the temperature is not positive.
    """
    _check_negatives(score_BK)
    if not temperature > 0:
        raise UserError(f"temperature {temperature}: must be greater than 0")
    counts_BK = counts(document_ids_BK)
    student_BK, teacher_BK = (_log_softmax(x_BK / temperature, counts_BK) for x_BK in (score_BK, teacher_BK))
    # What does not count has probability 0 in both; -inf - -inf would be NaN.
    gap_BK = jnp.where(counts_BK, teacher_BK, 0) - jnp.where(counts_BK, student_BK, 0)
    loss_B = temperature**2 * (jnp.exp(teacher_BK) * gap_BK).sum(axis=1)
    return loss_B, compared(score_BK.astype(jnp.float32), document_ids_BK)


def _log_softmax(score_BK: jax.Array, counts_BK: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(jnp.where(counts_BK, score_BK.astype(jnp.float32), -jnp.inf))


def _check_negatives(score_BK: jax.Array) -> None:
    if score_BK.shape[1] < 2:
        raise UserError(f"distillation over a query's candidates, but it has {score_BK.shape[1]}: the positive")
