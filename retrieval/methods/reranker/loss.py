"""Pointwise losses: each document is judged alone, as relevant or not. They are a reranker's first.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then its hard negatives), C
classes of a document (not relevant, relevant). Copies of the positive, by id, do not count as negatives.
"""

import dataclasses

import jax
import jax.numpy as jnp

from retrieval.training.candidates import OfCandidates, compared, mean
from retrieval.training.loss_kind import CLASSES, LOSSES, Batch, Loss, Metrics


@dataclasses.dataclass(frozen=True)
class BinaryCrossEntropy(OfCandidates):
    """Each document alone: relevant or not, by one score.

        loss = mean of -log sigmoid(s_p / temperature) and, of each negative n, -log sigmoid(-s_n / temperature)

    The pointwise loss of cross-encoders, sentence-transformers' BinaryCrossEntropyLoss. Take it where scores are read
    as probabilities; for the order alone `multi_negative_nll` is mostly better.
    """

    def of_scores(self, score_BK: jax.Array, ids_BK: jax.Array, batch: Batch) -> jax.Array:
        """As `OfCandidates.of_scores`."""
        sign_K = jnp.where(jnp.arange(score_BK.shape[1]) == 0, -1.0, 1.0)
        return mean(jax.nn.softplus(sign_K * score_BK), ids_BK)


@dataclasses.dataclass(frozen=True)
class ClassCrossEntropy(Loss):
    """Each document alone: relevant or not, by two logits.

        loss = mean over the example's documents of -log softmax(logits)[1 of the positive, 0 of a negative]

    monoBERT's loss (Nogueira & Cho 2019), sentence-transformers' CrossEntropyLoss. Take it for a reranker that starts
    from a classifier of two classes. A document's score is log p(relevant).
    """

    inputs = CLASSES
    needs_negatives = True

    def __call__(self, logit_BKC: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of the logits of an example's documents, the positive's first."""
        ids_BK, log_BKC = batch["document_id"], jax.nn.log_softmax(logit_BKC.astype(jnp.float32))
        is_positive_K = jnp.arange(log_BKC.shape[1]) == 0
        loss_BK = -jnp.where(is_positive_K, log_BKC[:, :, 1], log_BKC[:, :, 0])
        return mean(loss_BK, ids_BK), compared(log_BKC[:, :, 1], ids_BK)


LOSSES.register("binary_cross_entropy", BinaryCrossEntropy)
LOSSES.register("class_cross_entropy", ClassCrossEntropy)
