"""Losses of a student that learns a teacher's scores of a query's candidates; the caller owns the mean.

Letters of shapes: B queries of the global batch, K candidates of each (the positive, then the hard negatives). Copies
of the positive, by id, count in no loss. A batch has the teacher's scores, `teacher` [B, K].
"""

import dataclasses

import jax
import jax.numpy as jnp

from retrieval.training.candidates import OfCandidates, candidate_mask, mean_of_negatives
from retrieval.training.loss_kind import LOSSES, Batch, teacher_scores


@dataclasses.dataclass(frozen=True)
class MarginMSE(OfCandidates):
    """The teacher's margins, by squared error.

        loss = mean over negatives n of ((s_p - s_n) / temperature - (t_p - t_n) / teacher_temperature)^2

    sentence-transformers' MarginMSELoss (Hofstätter et al. 2020). Take it with the logits of a cross-encoder as
    teacher: the student learns how far apart two documents are, and is free to choose its own scale's origin.
    """

    needs_teacher = True

    teacher_temperature: float = 1.0

    def of_scores(self, score_BK: jax.Array, ids_BK: jax.Array, batch: Batch) -> jax.Array:
        """As `OfCandidates.of_scores`."""
        teacher_BK = teacher_scores(batch) / self.teacher_temperature
        difference_BK = (score_BK[:, :1] - score_BK) - (teacher_BK[:, :1] - teacher_BK)
        return mean_of_negatives(jnp.square(difference_BK[:, 1:]), ids_BK)


@dataclasses.dataclass(frozen=True)
class KLDivergence(OfCandidates):
    """The teacher's distribution over an example's documents.

        loss = KL(softmax(t / teacher_temperature) || softmax(s / temperature))

    Knowledge distillation (Hinton et al. 2015), sentence-transformers' DistillKLDivLoss. Take it with many negatives of
    each query: the order of all of them is learned, not that of pairs.
    """

    needs_teacher = True

    teacher_temperature: float = 1.0

    def of_scores(self, score_BK: jax.Array, ids_BK: jax.Array, batch: Batch) -> jax.Array:
        """As `OfCandidates.of_scores`."""
        mask_BK, scores = candidate_mask(ids_BK), (score_BK, teacher_scores(batch) / self.teacher_temperature)
        student_BK, teacher_BK = (jax.nn.log_softmax(jnp.where(mask_BK, x_BK, -jnp.inf)) for x_BK in scores)
        # What does not count has probability 0 in both; -inf - -inf would be NaN.
        gap_BK = jnp.where(mask_BK, teacher_BK, 0) - jnp.where(mask_BK, student_BK, 0)
        return (jnp.exp(teacher_BK) * gap_BK).sum(axis=1)


LOSSES.register("margin_mse", MarginMSE)
LOSSES.register("kl_divergence", KLDivergence)
