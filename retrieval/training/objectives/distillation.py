"""Losses of a student that learns a teacher's scores of a query's candidates; the caller owns the mean.

Letters of shapes: B queries of the global batch, K candidates of each (the positive, then the hard negatives). Copies
of the positive, by id, count in no loss. A batch has the teacher's scores, `teacher` [B, K].
"""

import dataclasses

import jax
import jax.numpy as jnp

from retrieval.training.candidates import compared, counts, divided, mean_of_negatives
from retrieval.training.loss_kind import LOSSES, SCORES, Batch, Loss, Metrics, teacher_scores


@dataclasses.dataclass(frozen=True)
class MarginMSE(Loss):
    """The teacher's margins, by squared error.

        loss = mean over negatives n of ((s_p - s_n) / temperature - (t_p - t_n) / teacher_temperature)^2

    sentence-transformers' MarginMSELoss (Hofstätter et al. 2020). Take it with the logits of a cross-encoder as
    teacher: the student learns how far apart two documents are, and is free to choose its own scale's origin.
    """

    compares = SCORES
    needs_negatives = needs_teacher = True

    temperature: float = 1.0
    teacher_temperature: float = 1.0

    def __call__(self, score_BK: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of the student's scores of an example's documents, the positive's first."""
        ids_BK, score_BK = batch["document_id"], divided(score_BK, self.temperature)
        teacher_BK = teacher_scores(batch) / self.teacher_temperature
        difference_BK = (score_BK[:, :1] - score_BK) - (teacher_BK[:, :1] - teacher_BK)
        return mean_of_negatives(jnp.square(difference_BK[:, 1:]), ids_BK), compared(score_BK, ids_BK)


@dataclasses.dataclass(frozen=True)
class KLDivergence(Loss):
    """The teacher's distribution over an example's documents.

        loss = KL(softmax(t / teacher_temperature) || softmax(s / temperature))

    Knowledge distillation (Hinton et al. 2015), sentence-transformers' DistillKLDivLoss. Take it with many negatives of
    each query: the order of all of them is learned, not that of pairs.
    """

    compares = SCORES
    needs_negatives = needs_teacher = True

    temperature: float = 1.0
    teacher_temperature: float = 1.0

    def __call__(self, score_BK: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of the student's scores of an example's documents, the positive's first."""
        ids_BK, score_BK = batch["document_id"], divided(score_BK, self.temperature)
        counts_BK, scores = counts(ids_BK), (score_BK, teacher_scores(batch) / self.teacher_temperature)
        student_BK, teacher_BK = (jax.nn.log_softmax(jnp.where(counts_BK, x_BK, -jnp.inf)) for x_BK in scores)
        # What does not count has probability 0 in both; -inf - -inf would be NaN.
        gap_BK = jnp.where(counts_BK, teacher_BK, 0) - jnp.where(counts_BK, student_BK, 0)
        return (jnp.exp(teacher_BK) * gap_BK).sum(axis=1), compared(score_BK, ids_BK)


LOSSES.register("margin_mse", MarginMSE)
LOSSES.register("kl_divergence", KLDivergence)
