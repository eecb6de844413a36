"""Losses of a margin: between a positive and its own hard negatives, or every other document of the batch (RepBERT).

Letters of shapes: B rows of the global batch, K documents of each, N all of them (B * K), E embedding size, P positives
that a query has at most.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from retrieval.runtime.arrays import on_every_device
from retrieval.training.candidate_blocks import contain
from retrieval.training.candidates import compared, divided, mean_of_negatives
from retrieval.training.loss_kind import EMBEDDINGS, LOSSES, SCORES, TEMPERATURE, Batch, Loss, Metrics

# Stands in the list of a query without any known positive; no document has this id.
NO_DOCUMENT = -1


def triplet(
    score_BK: jax.Array, batch: Batch, *, temperature: float = 1.0, margin: float = 1.0
) -> tuple[jax.Array, Metrics]:
    """max(0, margin - (score of the positive - score of a negative)), the mean over an example's hard negatives
    (Lu et al. 2021, section 4.2).

    Args, Returns and Raises: as of `own_negatives.multi_negative_nll`.
    """
    ids_BK, score_BK = batch["document_id"], divided(score_BK, temperature)
    loss_BN = jax.nn.relu(margin - (score_BK[:, :1] - score_BK[:, 1:]))
    return mean_of_negatives(loss_BN, ids_BK), compared(score_BK, ids_BK)


def multi_label_margin(
    query_BE: jax.Array,
    document_BKE: jax.Array,
    document_ids_BK: jax.Array,
    positive_ids_BP: jax.Array,
    *,
    margin: float = 1.0,
) -> tuple[jax.Array, Metrics]:
    """The sum of max(0, margin - (score of a positive - score of another document)) over all such pairs, divided by N
    (Zhan et al. 2020, equation 4; torch's MultiLabelMarginLoss). A score is an inner product.

    Ids decide what is positive, wherever in the global batch it stands. A positive that another row brought is one, and
    each copy of it counts. No positive of a query is its negative. Memory is B x N, whatever P is.

    Args:
      document_ids_BK: equal for copies of a document, 0 or more.
      positive_ids_BP: all known positives of the row's query. An id may be there more than once, to fill a row up, and
        `NO_DOCUMENT` too.

    Returns:
      The loss [B], 0 for a row without a positive in the batch; 'recall@1' [B]: 1 where a positive's score is greater
      than that of every other document; and 'active' [B], the share of the row's pairs that are within the margin.
    """
    B, K, E = document_BKE.shape
    document_NE = on_every_device(document_BKE.astype(jnp.float32).reshape(B * K, E))
    ids_N = on_every_device(document_ids_BK.reshape(B * K))
    # The default precision on an accelerator would round the embeddings to bfloat16 or TF32.
    precision = jax.lax.Precision.HIGHEST
    score_BN = jnp.einsum("be,ne->bn", query_BE.astype(jnp.float32), document_NE, precision=precision)
    positive_BN = contain(positive_ids_BP, ids_N)
    hinges: Any = _hinges(score_BN, positive_BN, margin)  # custom_vjp's stub says `object`
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


def _backward(margin: float, gradient_BN: jax.Array, given: tuple) -> tuple[jax.Array, None]:
    return given[0][:, None] * gradient_BN, None


_hinges.defvjp(_forward, _backward)


def of_batch(query_BE: jax.Array, document_BKE: jax.Array, batch: Batch, *, margin: float) -> tuple[jax.Array, Metrics]:
    """`multi_label_margin` of a batch; a query without a list of known positives has its own alone."""
    ids_BK = batch["document_id"]
    return multi_label_margin(query_BE, document_BKE, ids_BK, batch.get("positive_ids", ids_BK[:, :1]), margin=margin)


LOSSES.register(
    "triplet",
    Loss(
        triplet,
        SCORES,
        "a margin between the positive and each hard negative",
        options=(TEMPERATURE, "train.margin"),
        needs_negatives=True,
    ),
)
LOSSES.register(
    "multi_label_margin",
    Loss(
        of_batch,
        EMBEDDINGS,
        "a margin between every known positive and all other documents of the batch (RepBERT)",
        options=("train.margin",),
        takes_positives=lambda options: True,
        counts_copies=lambda options: "train.loss",
    ),
)
