"""Losses of the order that a teacher, or people's grades, give an example's documents.

Letters of shapes: B queries of the global batch, K candidates of each, in the order of the example (BK) or in that of
the student's scores (BR), and pairs of them (BRR). Copies of the positive, by id, count in no loss. A batch has the
scores to learn from, `teacher` [B, K]: a teacher's, or grades.
"""

import dataclasses

import jax
import jax.numpy as jnp

from retrieval.training.candidates import OfCandidates, candidate_mask
from retrieval.training.loss_kind import LOSSES, Batch, teacher_scores

_LEAST = 1e-10  # of an ideal DCG: without a relevant document there is none


@dataclasses.dataclass(frozen=True)
class RankNet(OfCandidates):
    """Each pair of documents in the teacher's order.

        loss = mean over pairs with t_i > t_j of log(1 + exp((s_j - s_i) / temperature))

    Burges et al. 2005; sentence-transformers' RankNetLoss, which is in bits. Take it where the teacher's order is good
    and its margins mean nothing; with margins that do, margin_mse learns more.
    """

    needs_teacher = True

    def of_scores(self, score_BK: jax.Array, ids_BK: jax.Array, batch: Batch) -> jax.Array:
        """As `OfCandidates.of_scores`; 0 where no two grades differ."""
        loss_BKK = jax.nn.softplus(score_BK[:, None, :] - score_BK[:, :, None])
        return _mean_of_pairs(loss_BKK, teacher_scores(batch), candidate_mask(ids_BK))


@dataclasses.dataclass(frozen=True)
class ListMLE(OfCandidates):
    """The likelihood of the teacher's whole order.

        loss = -sum over ranks r of log(exp(s_r) / sum over ranks q >= r of exp(s_q)), s by the teacher's order

    The Plackett-Luce model (Xia et al. 2008), sentence-transformers' ListMLELoss with sorted labels. Take it with a
    full order of few documents; equal grades are ranked in the order of the example.
    """

    needs_teacher = True

    def of_scores(self, score_BK: jax.Array, ids_BK: jax.Array, batch: Batch) -> jax.Array:
        """As `OfCandidates.of_scores`."""
        mask_BK = candidate_mask(ids_BK)
        order_BR = jnp.argsort(jnp.where(mask_BK, -teacher_scores(batch), jnp.inf), axis=1, stable=True)
        score_BR, mask_BR = (jnp.take_along_axis(x_BK, order_BR, axis=1) for x_BK in (score_BK, mask_BK))
        counted_BR = jnp.where(mask_BR, score_BR, -jnp.inf)  # these come last
        rest_BR = jax.lax.cumlogsumexp(counted_BR, axis=1, reverse=True)
        return jnp.where(mask_BR, rest_BR - score_BR, 0).sum(axis=1)


@dataclasses.dataclass(frozen=True)
class LambdaLoss(OfCandidates):
    """Pairs in the order of their grades, each weighed by what its exchange changes in nDCG.

        loss = mean over pairs with t_i > t_j of w_ij * log2(1 + exp((s_j - s_i) / temperature))
        w_ij = |G_i - G_j| * (10 * |1 / D(|i - j|) - 1 / D(|i - j| + 1)| + |1 / D(i) - 1 / D(j)|)

    with i and j the ranks by the student's scores, G = (2^t - 1) / ideal DCG and D(r) = log2(1 + r): NDCGLoss2++ of
    Wang et al. 2018, sentence-transformers' LambdaLoss. Take it for a reranker that is judged by nDCG, with grades such
    as 0 to 3: gains are exponential, and negative grades count as 0.
    """

    needs_teacher = True

    def of_scores(self, score_BK: jax.Array, ids_BK: jax.Array, batch: Batch) -> jax.Array:
        """As `OfCandidates.of_scores`; 0 where no two grades differ."""
        mask_BK, grade_BK = candidate_mask(ids_BK), teacher_scores(batch)
        order_BR = jnp.argsort(jnp.where(mask_BK, -score_BK, jnp.inf), axis=1, stable=True)
        parts = score_BK, grade_BK, mask_BK
        score_BR, grade_BR, mask_BR = (jnp.take_along_axis(part, order_BR, axis=1) for part in parts)
        gain_BR = jnp.where(mask_BR, jnp.exp2(jnp.maximum(grade_BR, 0)) - 1, 0)
        rank_R = jnp.arange(1, score_BR.shape[1] + 1)
        inverse_R = 1 / jnp.log2(1.0 + rank_R)
        ideal_B = (jnp.sort(gain_BR, axis=1, descending=True) * inverse_R).sum(axis=1)
        gain_BR /= jnp.maximum(ideal_B, _LEAST)[:, None]
        gap_RR = jnp.abs(rank_R[:, None] - rank_R)
        step_RR = jnp.where(gap_RR > 0, 1 / jnp.log2(1.0 + jnp.maximum(gap_RR, 1)) - 1 / jnp.log2(2.0 + gap_RR), 0)
        weight_RR = 10 * step_RR + jnp.abs(inverse_R[:, None] - inverse_R)
        weight_BRR = weight_RR * jnp.abs(gain_BR[:, :, None] - gain_BR[:, None, :])
        loss_BRR = weight_BRR * jax.nn.softplus(score_BR[:, None, :] - score_BR[:, :, None]) / jnp.log(2.0)
        return _mean_of_pairs(loss_BRR, grade_BR, mask_BR)


def _mean_of_pairs(loss_BKK: jax.Array, grade_BK: jax.Array, mask_BK: jax.Array) -> jax.Array:
    """The mean over the pairs of which the first has the higher grade; 0 where there is none."""
    differ_BKK = grade_BK[:, :, None] > grade_BK[:, None, :]
    mask_BKK = differ_BKK & mask_BK[:, :, None] & mask_BK[:, None, :]
    return jnp.where(mask_BKK, loss_BKK, 0).sum(axis=(1, 2)) / jnp.maximum(mask_BKK.sum(axis=(1, 2)), 1)


LOSSES.register("ranknet", RankNet)
LOSSES.register("list_mle", ListMLE)
LOSSES.register("lambda_loss", LambdaLoss)
