"""Pointwise losses: each document is judged alone, as relevant or not. They are a reranker's first.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then its hard negatives), C
classes of a document (not relevant, relevant). Copies of the positive, by id, do not count as negatives.
"""

import jax
import jax.numpy as jnp

from retrieval.training.candidates import compared, divided, mean
from retrieval.training.loss_kind import CLASSES, LOSSES, SCORES, Batch, Loss, Metrics


def binary_cross_entropy(score_BK: jax.Array, batch: Batch, *, temperature: float = 1.0) -> tuple[jax.Array, Metrics]:
    """-log sigmoid(score) of the positive, -log sigmoid(-score) of a negative; the mean over documents.

    Returns:
      The loss [B], and what `compared` says of the scores.
    """
    ids_BK, score_BK = batch["document_id"], divided(score_BK, temperature)
    sign_K = jnp.where(jnp.arange(score_BK.shape[1]) == 0, -1.0, 1.0)
    return mean(jax.nn.softplus(sign_K * score_BK), ids_BK), compared(score_BK, ids_BK)


def class_cross_entropy(logit_BKC: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
    """-log softmax of a document's class, 1 of the positive and 0 of a negative (Nogueira & Cho 2019).

    A document's score is log p(relevant). The loss is the mean over documents.

    Returns:
      As `binary_cross_entropy`.
    """
    ids_BK, log_BKC = batch["document_id"], jax.nn.log_softmax(logit_BKC.astype(jnp.float32))
    is_positive_K = jnp.arange(log_BKC.shape[1]) == 0
    loss_BK = -jnp.where(is_positive_K, log_BKC[:, :, 1], log_BKC[:, :, 0])
    return mean(loss_BK, ids_BK), compared(log_BKC[:, :, 1], ids_BK)


LOSSES.register(
    "binary_cross_entropy",
    Loss(binary_cross_entropy, SCORES, "each document alone: relevant or not, by one score", needs_negatives=True),
)
LOSSES.register(
    "class_cross_entropy",
    Loss(
        class_cross_entropy,
        CLASSES,
        "each document alone: relevant or not, by two logits (monoBERT)",
        options=(),
        needs_negatives=True,
    ),
)
