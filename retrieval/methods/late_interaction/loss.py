"""Losses of the scores of all documents of the batch, which are no inner products.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then its hard negatives), N all of
them (B * K), P known positives of a query.
"""

import jax
import jax.numpy as jnp

from retrieval.runtime.arrays import on_every_device
from retrieval.training.candidate_blocks import contain
from retrieval.training.loss_kind import LOSSES, TEMPERATURE, Batch, Loss, Metrics
from retrieval.training.objectives.distillation import kl_divergence

BATCH_SCORES = "the scores of all documents of the batch"  # (score_BN, batch, **options)
_OTHERS = "train.other_positives"
_LEAST = -1e30  # of what is left out: -inf - -inf would be NaN


def maxsim_softmax(
    score_BN: jax.Array, batch: Batch, *, temperature: float = 1.0, other_positives: str = "mask"
) -> tuple[jax.Array, Metrics]:
    """-log softmax of a query's positive among itself and the negatives, which are all other documents of the batch.

    No positive of a query is its negative, by id, in whatever row and column it is.

    Args:
      score_BN: the positive of example b is in column b * K.
      batch: its `document_id` [B, K] and, where there are some, `positive_ids` [B, P].
      other_positives: as of `in_batch_softmax`: mask, mean or negatives.

    Returns:
      The loss [B], and 'recall@1' [B]: 1 where the positive's score is greater than that of every negative.
    """
    ids_BK = batch["document_id"]
    B, K = ids_BK.shape
    known_BP = ids_BK[:, :1] if other_positives == "negatives" else batch.get("positive_ids", ids_BK[:, :1])
    ids_N = on_every_device(ids_BK.reshape(B * K))
    own_B = jnp.zeros_like(ids_BK[:, 0]) + jnp.arange(0, B * K, K, dtype=ids_BK.dtype)
    own_BN = own_B[:, None] == jnp.arange(B * K, dtype=ids_BK.dtype)
    positive_BN = contain(known_BP, ids_N) | own_BN
    logit_BN = score_BN.astype(jnp.float32) / temperature
    own_logit_B = jnp.where(own_BN, logit_BN, 0).sum(axis=1)
    negative_BN = jnp.where(positive_BN, _LEAST, logit_BN)
    if other_positives == "mean":
        lead_BN = jax.nn.logsumexp(negative_BN, axis=1, keepdims=True) - logit_BN
        loss_B = jnp.where(positive_BN, jax.nn.softplus(lead_BN), 0).sum(axis=1) / positive_BN.sum(axis=1)
    else:
        loss_B = jax.nn.logsumexp(jnp.where(own_BN, logit_BN, negative_BN), axis=1) - own_logit_B
    return loss_B, {"recall@1": (own_logit_B > negative_BN.max(axis=1)).astype(jnp.float32)}


def maxsim_distillation(
    score_BN: jax.Array, batch: Batch, *, temperature: float = 1.0, softening: float = 1.0, in_batch: float = 1.0
) -> tuple[jax.Array, Metrics]:
    """KL(teacher || student) over an example's own documents, and the softmax over those of other examples beside it
    (ColBERTv2, Santhanam et al. 2022).

    Args:
      score_BN, batch: as of `maxsim_softmax`; also the `teacher` [B, K].
      temperature, softening: as of `distillation.kl_divergence`.
      in_batch: weight of the softmax. An example's own negatives are not in it.

    Returns:
      The loss [B], and the metrics of `kl_divergence`.
    """
    B, K = batch["document_id"].shape
    own_BB1 = jnp.eye(B, dtype=bool)[:, :, None]
    score_BBK = score_BN.astype(jnp.float32).reshape(B, B, K)
    own_BK = jnp.where(own_BB1, score_BBK, 0).sum(axis=1)
    loss_B, metrics = kl_divergence(own_BK, batch, temperature=temperature, softening=softening)
    others_BBK = jnp.where(own_BB1 & (jnp.arange(K) > 0), _LEAST, score_BBK)
    softmax_B, _ = maxsim_softmax(others_BBK.reshape(B, B * K), batch, temperature=temperature)
    return loss_B + in_batch * softmax_B, metrics


LOSSES.register(
    "maxsim_softmax",
    Loss(
        maxsim_softmax,
        BATCH_SCORES,
        "late interaction: softmax of the positive among all documents of the batch",
        options=(TEMPERATURE, _OTHERS),
        takes_positives=lambda options: options[_OTHERS] != "negatives",
        counts_copies=lambda options: _OTHERS if options[_OTHERS] == "mean" else "",
    ),
)
LOSSES.register(
    "maxsim_distillation",
    Loss(
        maxsim_distillation,
        BATCH_SCORES,
        "late interaction: the teacher's distribution, and the softmax over other examples' documents (ColBERTv2)",
        options=(TEMPERATURE, "train.softening", "train.in_batch"),
        needs_negatives=True,
        needs_teacher=True,
        takes_positives=lambda options: True,
    ),
)
