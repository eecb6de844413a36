"""Losses of pairs of texts with a score, how alike they are: their order, or the scores themselves, by cosines.

Letters of shapes: B pairs of the global batch, K documents of each, 1 (no negatives), E embedding size.
"""

import jax
import jax.numpy as jnp

from retrieval.errors import UserError
from retrieval.runtime.arrays import on_every_device
from retrieval.training.loss_kind import EMBEDDINGS, LOSSES, Batch, Loss, Metrics

_SMALL = 1e-24  # under a root: the cosine of a zero vector is 0, and so is its gradient


def cosent(
    query_BE: jax.Array, document_BKE: jax.Array, batch: Batch, *, temperature: float = 1.0
) -> tuple[jax.Array, Metrics]:
    """log(1 + sum of exp((cos_i - cos_j) / temperature)) over all pairs i, j of the global batch where j has the higher
    score (Su 2022; sentence-transformers' CoSENTLoss, whose scale 20 is the temperature 0.05).

    The sum goes over each j times what scores below it: with the pairs in the order of their scores that is a running
    sum, so memory and time grow with B, and not with its square.

    Args:
      batch: its `teacher` [B, 1] has the scores, of which the order alone counts.

    Returns:
      The loss [B], one value for the whole batch; and 'correlation' [B], as of `correlation`.

    Raises:
      UserError: the temperature is not positive, there are no scores, or there are hard negatives.
    """
    if not temperature > 0:
        raise UserError(f"temperature {temperature}: must be greater than 0")
    cosine_B, score_B = on_every_device(_compared(query_BE, document_BKE, batch))
    order_B = jnp.argsort(score_B)
    logit_B, ascending_B = cosine_B[order_B] / temperature, score_B[order_B]
    below_B = jnp.searchsorted(ascending_B, ascending_B, side="left")  # how many have a lower score
    sum_B = jax.lax.cumlogsumexp(logit_B)[jnp.maximum(below_B - 1, 0)]
    term_B = jnp.where(below_B > 0, sum_B - logit_B, -jnp.inf)
    loss = jax.nn.logsumexp(jnp.append(term_B, 0.0))
    return _of_each(loss, query_BE), {"correlation": _of_each(correlation(cosine_B, score_B), query_BE)}


def cosine_mse(query_BE: jax.Array, document_BKE: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
    """The squared difference of a pair's cosine and its score (sentence-transformers' CosineSimilarityLoss).

    Args:
      batch: its `teacher` [B, 1] has the scores, from -1 to 1.

    Returns:
      The loss [B], and 'correlation' [B], as of `correlation`.

    Raises:
      UserError: there are no scores, or there are hard negatives.
    """
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
    if "teacher" not in batch:
        raise UserError("a loss of pairs with a score, but the labelled examples have none")
    if (K := document_BKE.shape[1]) != 1:
        raise UserError(f"a loss of pairs with a score, and an example has {K} documents: set config.data.negatives=0")
    one_BE, other_BE = query_BE.astype(jnp.float32), document_BKE[:, 0].astype(jnp.float32)
    lengths_B = [jax.lax.rsqrt(jnp.square(x_BE).sum(axis=1) + _SMALL) for x_BE in (one_BE, other_BE)]
    return (one_BE * other_BE).sum(axis=1) * lengths_B[0] * lengths_B[1], batch["teacher"][:, 0].astype(jnp.float32)


def _of_each(value: jax.Array, query_BE: jax.Array) -> jax.Array:
    """A value of the batch as that of each pair, [B]."""
    return jnp.zeros_like(query_BE[:, 0], jnp.float32) + value


LOSSES.register(
    "cosent",
    Loss(
        cosent,
        EMBEDDINGS,
        "the order of the pairs of a batch by their scores (CoSENT)",
        needs_teacher=True,
        of_scored_pairs=True,
        of_cosines=True,
    ),
)
LOSSES.register(
    "cosine_mse",
    Loss(
        cosine_mse,
        EMBEDDINGS,
        "the squared difference of a pair's cosine and its score",
        options=(),
        needs_teacher=True,
        of_scored_pairs=True,
        score_limits=(-1.0, 1.0),
        of_cosines=True,
    ),
)
