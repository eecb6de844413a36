"""Losses of a student that learns a teacher's scores of a query's candidates; the caller owns the mean.

Letters of shapes: B queries of the global batch, K candidates of each (the positive, then the hard negatives). Copies
of the positive, by id, count in no loss.
"""

import jax
import jax.numpy as jnp

from retrieval.errors import UserError
from retrieval.training.candidates import compared, counts, divided, mean_of_negatives
from retrieval.training.loss_kind import LOSSES, SCORES, TEMPERATURE, Batch, Loss, Metrics

_SOFTENING, _TEACHER, _MIN_MAX = "train.softening", "train.teacher_temperature", "train.min_max"
_EPSILON = 1e-8  # of PyLate


def margin_mse(
    score_BK: jax.Array, batch: Batch, *, temperature: float = 1.0, teacher_temperature: float = 1.0
) -> tuple[jax.Array, Metrics]:
    """The squared difference of the student's and the teacher's margin between the positive and a negative, the mean
    over negatives (Hofstätter et al. 2020).

    Args:
      score_BK: the student's scores, which are divided by the temperature.
      batch: its `teacher` [B, K] has the teacher's scores, which are divided by a temperature of their own.

    Returns:
      The loss [B], 0 where no negative counts, and what `compared` says of the student's scores.

    Raises:
      UserError: there are no hard negatives or no teacher's scores, or the temperature is not positive.
    """
    ids_BK, score_BK, teacher_BK = (
        batch["document_id"],
        divided(score_BK, temperature),
        _teacher(batch, teacher_temperature),
    )
    difference_BK = (score_BK[:, :1] - score_BK) - (teacher_BK[:, :1] - teacher_BK)
    return mean_of_negatives(jnp.square(difference_BK[:, 1:]), ids_BK), compared(score_BK, ids_BK)


def kl_divergence(
    score_BK: jax.Array,
    batch: Batch,
    *,
    temperature: float = 1.0,
    softening: float = 1.0,
    teacher_temperature: float = 1.0,
    min_max: bool = False,
) -> tuple[jax.Array, Metrics]:
    """KL(teacher || student) of the softmax over a query's candidates, times softening^2 (Hinton et al. 2015).

    Args:
      score_BK, batch, temperature, teacher_temperature: as of `margin_mse`.
      softening: divides the scores of both; the factor keeps the size of the gradient.
      min_max: whether a query's scores of the student go from 0 to 1 before they are divided, as PyLate has them.

    Returns and Raises: as of `margin_mse`.
    """
    ids_BK = batch["document_id"]
    counts_BK = counts(ids_BK)
    score_BK = divided(_from_0_to_1(score_BK, counts_BK) if min_max else score_BK, temperature)
    scores = score_BK, _teacher(batch, teacher_temperature)
    student_BK, teacher_BK = (_log_softmax(x_BK, counts_BK, softening) for x_BK in scores)
    # What does not count has probability 0 in both; -inf - -inf would be NaN.
    gap_BK = jnp.where(counts_BK, teacher_BK, 0) - jnp.where(counts_BK, student_BK, 0)
    return softening**2 * (jnp.exp(teacher_BK) * gap_BK).sum(axis=1), compared(score_BK, ids_BK)


def _log_softmax(score_BK: jax.Array, counts_BK: jax.Array, softening: float) -> jax.Array:
    return jax.nn.log_softmax(jnp.where(counts_BK, score_BK / softening, -jnp.inf))


def _from_0_to_1(score_BK: jax.Array, counts_BK: jax.Array) -> jax.Array:
    """Scores less a query's lowest, by its range, of the candidates that count."""
    score_BK = score_BK.astype(jnp.float32)
    least_B = score_BK.min(axis=1, where=counts_BK, initial=jnp.inf)
    most_B = score_BK.max(axis=1, where=counts_BK, initial=-jnp.inf)
    return (score_BK - least_B[:, None]) / (most_B - least_B + _EPSILON)[:, None]


def _teacher(batch: Batch, temperature: float) -> jax.Array:
    if "teacher" not in batch:
        raise UserError("a loss of a teacher's scores, but the labelled examples have none")
    return batch["teacher"].astype(jnp.float32) / temperature


LOSSES.register(
    "margin_mse",
    Loss(
        margin_mse,
        SCORES,
        "the teacher's margins, by squared error",
        options=(TEMPERATURE, _TEACHER),
        needs_negatives=True,
        needs_teacher=True,
    ),
)
LOSSES.register(
    "kl_divergence",
    Loss(
        kl_divergence,
        SCORES,
        "the teacher's distribution over an example's documents",
        options=(TEMPERATURE, _SOFTENING, _TEACHER, _MIN_MAX),
        needs_negatives=True,
        needs_teacher=True,
    ),
)
