"""Losses of the scores of all documents of the batch, which are no inner products.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then its hard negatives), N all of
them (B * K), P known positives of a query.
"""

import dataclasses

import jax
import jax.numpy as jnp

from retrieval.common.runtime.arrays import on_every_device
from retrieval.training.candidate_blocks import contain
from retrieval.training.loss_kind import LOSSES, Batch, Loss, Metrics
from retrieval.training.objectives.distillation import KLDivergence

BATCH_SCORES = "the scores of all documents of the batch"  # (score_BN, batch)
_LEAST = -1e30  # of what is left out: -inf - -inf would be NaN


@dataclasses.dataclass(frozen=True)
class MaxSimSoftmax(Loss):
    """Late interaction: softmax of the positive among all documents of the batch.

        loss = -log(exp(s_p / temperature) / (exp(s_p / temperature) + sum over negatives n of exp(s_n / temperature)))

    ColBERT's loss with in-batch negatives (Khattab & Zaharia 2020; Santhanam et al. 2022), PyLate's Contrastive. The
    one to take without a teacher. No positive of a query is its negative, by id, in whatever row and column it is.

    Attributes:
      other_positives: as of `in_batch_softmax`: mask, mean or negatives.
    """

    inputs = BATCH_SCORES

    temperature: float = 1.0
    other_positives: str = "mask"

    def __call__(self, score_BN: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of the scores of a batch; the positive of example b is in column b * K.

        Args:
          batch: its `document_id` [B, K] and, where there are some, `positive_ids` [B, P].

        Returns:
          The loss [B], and 'recall@1' [B]: 1 where the positive's score is greater than that of every negative.
        """
        ids_BK = batch["document_id"]
        B, K = ids_BK.shape
        known_BP = batch.get("positive_ids", ids_BK[:, :1]) if self.takes_positives else ids_BK[:, :1]
        ids_N = on_every_device(ids_BK.reshape(B * K))
        own_B = jnp.zeros_like(ids_BK[:, 0]) + jnp.arange(0, B * K, K, dtype=ids_BK.dtype)
        own_BN = own_B[:, None] == jnp.arange(B * K, dtype=ids_BK.dtype)
        positive_BN = contain(known_BP, ids_N) | own_BN
        logit_BN = score_BN.astype(jnp.float32) / self.temperature
        own_logit_B = jnp.where(own_BN, logit_BN, 0).sum(axis=1)
        negative_BN = jnp.where(positive_BN, _LEAST, logit_BN)
        if self.other_positives == "mean":
            lead_BN = jax.nn.logsumexp(negative_BN, axis=1, keepdims=True) - logit_BN
            loss_B = jnp.where(positive_BN, jax.nn.softplus(lead_BN), 0).sum(axis=1) / positive_BN.sum(axis=1)
        else:
            loss_B = jax.nn.logsumexp(jnp.where(own_BN, logit_BN, negative_BN), axis=1) - own_logit_B
        return loss_B, {"recall@1": (own_logit_B > negative_BN.max(axis=1)).astype(jnp.float32)}


@dataclasses.dataclass(frozen=True)
class MaxSimDistillation(Loss):
    """Late interaction: the teacher's distribution, and the softmax over other examples' documents.

        loss = kl_divergence over the example's own documents + maxsim_softmax over those of other examples

    ColBERTv2's loss (Santhanam et al. 2022). The one to take with a cross-encoder's scores. An example's own
    negatives are not in the softmax.
    """

    inputs = BATCH_SCORES
    needs_negatives = needs_teacher = True

    temperature: float = 1.0

    @property
    def takes_positives(self) -> bool:
        """As `Loss.takes_positives`."""
        return True

    def __call__(self, score_BN: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of the scores of a batch, as `MaxSimSoftmax`, with the `teacher` [B, K]; the metrics are `KLDivergence`'s."""
        B, K = batch["document_id"].shape
        own_BB1 = jnp.eye(B, dtype=bool)[:, :, None]
        score_BBK = score_BN.astype(jnp.float32).reshape(B, B, K)
        own_BK = jnp.where(own_BB1, score_BBK, 0).sum(axis=1)
        loss_B, metrics = KLDivergence(self.temperature)(own_BK, batch)
        others_BBK = jnp.where(own_BB1 & (jnp.arange(K) > 0), _LEAST, score_BBK)
        softmax_B, _ = MaxSimSoftmax(self.temperature)(others_BBK.reshape(B, B * K), batch)
        return loss_B + softmax_B, metrics


LOSSES.register("maxsim_softmax", MaxSimSoftmax)
LOSSES.register("maxsim_distillation", MaxSimDistillation)
