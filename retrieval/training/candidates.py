"""The candidates of a query, which losses of scores compare: which of them count, and what their scores do.

Letters of shapes: B queries of the global batch, K candidates of each (the positive, then the hard negatives). Copies
of the positive, by id, count in no loss.
"""

import abc
import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from retrieval.common.errors import UserError
from retrieval.training.candidate_blocks import product
from retrieval.training.loss_kind import EMBEDDINGS, SCORES, Batch, Loss, Metrics


def inner_products(query_BE: jax.Array, document_BKE: jax.Array) -> jax.Array:
    """The scores of an example's own documents, float32 [B, K]: what two towers say, for the losses of scores."""
    return product("be,bke->bk", query_BE.astype(jnp.float32), document_BKE.astype(jnp.float32))


def of_embeddings(loss: Loss) -> Callable[[jax.Array, jax.Array, Batch], tuple[jax.Array, Metrics]]:
    """A loss of embeddings as it is, and one of scores as that of the inner products of an example's own documents."""
    if loss.inputs == EMBEDDINGS:
        return loss
    return lambda query_BE, document_BKE, batch: loss(inner_products(query_BE, document_BKE), batch)


@dataclasses.dataclass(frozen=True)
class OfCandidates(Loss):
    """A loss of the scores of an example's own documents, the positive's first, divided by a temperature."""

    inputs = SCORES
    needs_negatives = True

    temperature: float = 1.0

    def __call__(self, score_BK: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """The loss [B], and the metrics of `compared`."""
        ids_BK, score_BK = batch["document_id"], divided(score_BK, self.temperature)
        return self.of_scores(score_BK, ids_BK, batch), compared(score_BK, ids_BK)

    @abc.abstractmethod
    def of_scores(self, score_BK: jax.Array, ids_BK: jax.Array, batch: Batch) -> jax.Array:
        """The loss [B] of scores that have been divided."""


def divided(score_BK: jax.Array, temperature: float) -> jax.Array:
    """Scores in float32, divided by a temperature."""
    if score_BK.shape[1] < 2:
        raise UserError(f"a loss of hard negatives, but an example has {score_BK.shape[1]} document: the positive")
    return score_BK.astype(jnp.float32) / temperature


def candidate_mask(document_ids_BK: jax.Array) -> jax.Array:
    """Which candidates are no copy of the positive beside it, bool [B, K]; the positive itself is among them."""
    is_positive_K = jnp.arange(document_ids_BK.shape[1]) == 0
    return (document_ids_BK != document_ids_BK[:, :1]) | is_positive_K


def compared(score_BK: jax.Array, document_ids_BK: jax.Array) -> Metrics:
    """What the scores of a query's candidates do, each [B]: metrics of every loss of candidates.

    Returns:
      'recall@1': 1 where the positive's score is greater than that of every negative, else 0; a tie is a miss.
      'spread': the standard deviation of the scores. Near 0 the model says the same of every candidate.
    """
    mask_BK = candidate_mask(document_ids_BK)
    rival_B = jnp.where(mask_BK[:, 1:], score_BK[:, 1:], -jnp.inf).max(axis=1, initial=-jnp.inf)
    mean_B = mean(score_BK, document_ids_BK)
    spread_B = jnp.sqrt(mean(jnp.square(score_BK - mean_B[:, None]), document_ids_BK))
    return {"recall@1": (score_BK[:, 0] > rival_B).astype(jnp.float32), "spread": spread_B}


def mean(value_BK: jax.Array, document_ids_BK: jax.Array) -> jax.Array:
    """The mean over the candidates that count."""
    mask_BK = candidate_mask(document_ids_BK)
    return jnp.where(mask_BK, value_BK, 0).sum(axis=1) / mask_BK.sum(axis=1)


def mean_of_negatives(value_BN: jax.Array, document_ids_BK: jax.Array) -> jax.Array:
    """The mean over the negatives that count, 0 where none does."""
    mask_BN = candidate_mask(document_ids_BK)[:, 1:]
    return jnp.where(mask_BN, value_BN, 0).sum(axis=1) / jnp.maximum(mask_BN.sum(axis=1), 1)
