"""RepBERT's loss: a margin between each positive of a query and every other document of the batch.

Letters of shapes: B rows of the global batch, K documents of each, N all of them (B * K), E embedding size, P positives
that a query has at most.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from retrieval.common.runtime.arrays import on_every_device
from retrieval.training.candidate_blocks import contain, product
from retrieval.training.loss_kind import EMBEDDINGS, LOSSES, Batch, Loss, Metrics

# Stands in the list of a query without any known positive; no document has this id.
NO_DOCUMENT = -1


@dataclasses.dataclass(frozen=True)
class MultiLabelMargin(Loss):
    """A margin between every known positive and all other documents of the batch.

        loss = 1 / N * sum over positives p and other documents d of max(0, margin - (s_p - s_d))

    RepBERT's loss (Zhan et al. 2020, equation 4), torch's MultiLabelMarginLoss. A score is an inner product. Take it
    for queries with several known positives, such as MS MARCO's.

    Ids decide what is positive, wherever in the global batch it stands. A positive that another row brought is one, and
    each copy of it counts. No positive of a query is its negative. Memory is B x N, whatever P is. A query without a
    list of known positives, `positive_ids` [B, P], has its own alone. An id may be in a list more than once, to fill it
    up, and `NO_DOCUMENT` too.
    """

    inputs = EMBEDDINGS

    margin: float = 1.0

    @property
    def takes_positives(self) -> bool:
        """As `Loss.takes_positives`."""
        return True

    @property
    def counts_copies(self) -> str:
        """As `Loss.counts_copies`: whatever the options are."""
        return "train.loss"

    def __call__(self, query_BE: jax.Array, document_BKE: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of the embeddings of a batch.

        Returns:
          The loss [B], 0 for a row without a positive in the batch; 'recall@1' [B]: 1 where a positive's score is
          greater than that of every other document; and 'active' [B], the share of the row's pairs that are within the
          margin.
        """
        B, K, E = document_BKE.shape
        ids_BK = batch["document_id"]
        document_NE = on_every_device(document_BKE.astype(jnp.float32).reshape(B * K, E))
        ids_N = on_every_device(ids_BK.reshape(B * K))
        score_BN = product("be,ne->bn", query_BE.astype(jnp.float32), document_NE)
        positive_BN = contain(batch.get("positive_ids", ids_BK[:, :1]), ids_N)
        hinges: Any = _hinges(score_BN, positive_BN, self.margin)  # custom_vjp's stub says `object`
        total_B, active_B = hinges
        pairs_B = positive_BN.sum(axis=1) * (~positive_BN).sum(axis=1)
        best_B, rival_B = (jnp.where(mask, score_BN, -jnp.inf).max(axis=1) for mask in (positive_BN, ~positive_BN))
        metrics = {"recall@1": (best_B > rival_B).astype(jnp.float32), "active": active_B / jnp.maximum(pairs_B, 1)}
        return total_B / (B * K), metrics


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _hinges(score_BN: jax.Array, positive_BN: jax.Array, margin: float) -> tuple[jax.Array, jax.Array]:
    """The sum of a row's hinges, and how many of them are above 0, both [B]. Only the sum is differentiable."""
    return _forward(score_BN, positive_BN, margin)[0]


def _forward(score_BN: jax.Array, positive_BN: jax.Array, margin: float) -> tuple:
    number_BN = jnp.cumsum(positive_BN, axis=1)  # 1 for the first positive of a row
    count_B1 = number_BN[:, -1:]

    def add(number: jax.Array, carry: tuple) -> tuple:
        total_B, active_B, gradient_BN = carry
        own_BN = positive_BN & (number_BN == number)
        hinge_BN = margin - jnp.where(own_BN, score_BN, 0).sum(axis=1, keepdims=True) + score_BN
        active_BN = ~positive_BN & (hinge_BN > 0) & (number <= count_B1)
        row_B1 = active_BN.sum(axis=1, keepdims=True, dtype=jnp.float32)
        total_B += jnp.where(active_BN, hinge_BN, 0).sum(axis=1)
        return total_B, active_B + row_B1[:, 0], gradient_BN + active_BN - jnp.where(own_BN, row_B1, 0)

    zero_BN = jnp.zeros_like(score_BN)
    start = (zero_BN[:, 0], zero_BN[:, 0], zero_BN)
    # Rows have few positives, and one at a time there is no array of pairs.
    total_B, active_B, gradient_BN = jax.lax.fori_loop(1, count_B1.max() + 1, add, start)
    return (total_B, active_B), gradient_BN


def _backward(margin: float, gradient_BN: jax.Array, of_results: tuple) -> tuple[jax.Array, None]:
    return of_results[0][:, None] * gradient_BN, None


_hinges.defvjp(_forward, _backward)


LOSSES.register("multi_label_margin", MultiLabelMargin)
