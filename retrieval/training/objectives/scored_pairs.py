"""Losses of pairs of texts with a score, how alike they are: their order, or the scores themselves, by cosines.

Letters of shapes: B pairs of the global batch, K documents of each, 1 (no negatives), E embedding size. A batch has the
scores as `teacher` [B, 1].
"""

import dataclasses

import jax
import jax.numpy as jnp

from retrieval.common.runtime.arrays import on_every_device
from retrieval.training.loss_kind import EMBEDDINGS, LOSSES, Batch, Loss, Metrics, teacher_scores

_SMALL = 1e-24  # under a root: the cosine of a zero vector is 0, and so is its gradient


@dataclasses.dataclass(frozen=True)
class CoSENT(Loss):
    """The order of the pairs of a batch by their scores.

        loss = log(1 + sum over pairs i, j with score_i < score_j of exp((cos_i - cos_j) / temperature))

    sentence-transformers' CoSENTLoss (Su 2022), whose scale 20 is the temperature 0.05. Take it for texts whose
    similarity people have graded: only the order of the grades counts, not their scale.

    The sum goes over each j times what scores below it: with the pairs in the order of their scores that is a running
    sum, so memory and time grow with B, and not with its square.
    """

    inputs = EMBEDDINGS
    needs_teacher = of_scored_pairs = of_cosines = True

    temperature: float = 1.0

    def __call__(self, query_BE: jax.Array, document_BKE: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """One value for the whole batch as that of each pair, [B]; and 'correlation' [B], as of `correlation`."""
        cosine_B, score_B = on_every_device(_compared(query_BE, document_BKE, batch))
        order_B = jnp.argsort(score_B)
        logit_B, ascending_B = cosine_B[order_B] / self.temperature, score_B[order_B]
        below_B = jnp.searchsorted(ascending_B, ascending_B, side="left")  # how many have a lower score
        sum_B = jax.lax.cumlogsumexp(logit_B)[jnp.maximum(below_B - 1, 0)]
        term_B = jnp.where(below_B > 0, sum_B - logit_B, -jnp.inf)
        loss = jax.nn.logsumexp(jnp.append(term_B, 0.0))
        return _of_each(loss, query_BE), {"correlation": _of_each(correlation(cosine_B, score_B), query_BE)}


@dataclasses.dataclass(frozen=True)
class CosineMSE(Loss):
    """The squared difference of a pair's cosine and its score.

        loss = (cos - score)^2

    sentence-transformers' CosineSimilarityLoss (Reimers & Gurevych 2019). Take it where the scores are cosines that
    are wanted as they are, from -1 to 1; else CoSENT, which needs no scale.
    """

    inputs = EMBEDDINGS
    needs_teacher = of_scored_pairs = of_cosines = True
    score_limits = (-1.0, 1.0)

    def __call__(self, query_BE: jax.Array, document_BKE: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """The loss [B], and 'correlation' [B], as of `correlation`."""
        cosine_B, score_B = _compared(query_BE, document_BKE, batch)
        metric = correlation(*on_every_device((cosine_B, score_B)))
        return jnp.square(cosine_B - score_B), {"correlation": _of_each(metric, query_BE)}


def correlation(cosine_B: jax.Array, score_B: jax.Array) -> jax.Array:
    """Pearson's correlation of cosines and scores, 0 where either is the same for all."""
    one_B, other_B = (value_B - value_B.mean() for value_B in (cosine_B, score_B))
    squares = jnp.square(one_B).sum() * jnp.square(other_B).sum()
    return (one_B * other_B).sum() * jax.lax.rsqrt(jnp.maximum(squares, _SMALL))


def _compared(query_BE: jax.Array, document_BKE: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """The cosine of each pair and its score, float32 [B]."""
    one_BE, other_BE = query_BE.astype(jnp.float32), document_BKE[:, 0].astype(jnp.float32)
    lengths_B = [jax.lax.rsqrt(jnp.square(x_BE).sum(axis=1) + _SMALL) for x_BE in (one_BE, other_BE)]
    return (one_BE * other_BE).sum(axis=1) * lengths_B[0] * lengths_B[1], teacher_scores(batch)[:, 0]


def _of_each(value: jax.Array, query_BE: jax.Array) -> jax.Array:
    """A value of the batch as that of each pair, [B]."""
    return jnp.zeros_like(query_BE[:, 0], jnp.float32) + value


LOSSES.register("cosent", CoSENT)
LOSSES.register("cosine_mse", CosineMSE)
