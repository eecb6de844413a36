"""Losses of an example's own documents: its positive against its hard negatives, never against another example's.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then N hard negatives). Copies of
the positive, by id, do not count as negatives. Where no negative counts, the loss is 0.
"""

import dataclasses

import jax
import jax.numpy as jnp

from retrieval.training.candidates import compared, counts, divided, mean_of_negatives
from retrieval.training.loss_kind import LOSSES, SCORES, Batch, Loss, Metrics


@dataclasses.dataclass(frozen=True)
class TwoWayNLL(Loss):
    """The positive against each hard negative alone.

        loss = mean over negatives n of log(1 + exp((s_n - s_p) / temperature))

    ANCE's loss (Xiong et al. 2021), also called pairwise logistic loss or RankNet. Take it with few negatives of which
    each should count alike, such as those that ANCE mines anew.
    """

    compares = SCORES
    needs_negatives = True

    temperature: float = 1.0

    def __call__(self, score_BK: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of the scores of an example's documents, the positive's first."""
        ids_BK, score_BK = batch["document_id"], divided(score_BK, self.temperature)
        loss_BN = jax.nn.softplus(score_BK[:, 1:] - score_BK[:, :1])
        return mean_of_negatives(loss_BN, ids_BK), compared(score_BK, ids_BK)


@dataclasses.dataclass(frozen=True)
class MultiNegativeNLL(Loss):
    """Softmax of the positive among its own example's documents.

        loss = -log(exp(s_p / temperature) / sum over the example's documents d of exp(s_d / temperature))

    The listwise loss of rerankers: ListNet with one relevant document, localised contrastive estimation (Gao et al.
    2021). Take it for a reranker with hard negatives; for towers the in-batch softmax has more negatives for nothing.
    """

    compares = SCORES
    needs_negatives = True

    temperature: float = 1.0

    def __call__(self, score_BK: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of the scores of an example's documents, the positive's first."""
        ids_BK, score_BK = batch["document_id"], divided(score_BK, self.temperature)
        counted_BK = jnp.where(counts(ids_BK), score_BK, -jnp.inf)
        return jax.nn.logsumexp(counted_BK, axis=1) - score_BK[:, 0], compared(score_BK, ids_BK)


@dataclasses.dataclass(frozen=True)
class Triplet(Loss):
    """A margin between the positive and each hard negative.

        loss = mean over negatives n of max(0, margin - (s_p - s_n) / temperature)

    torch's MarginRankingLoss, sentence-transformers' TripletLoss with scores in place of distances (Lu et al. 2021,
    section 4.2). A pair beyond the margin trains nothing: the softmax losses learn more of the same triples.
    """

    compares = SCORES
    needs_negatives = True

    temperature: float = 1.0
    margin: float = 1.0

    def __call__(self, score_BK: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of the scores of an example's documents, the positive's first."""
        ids_BK, score_BK = batch["document_id"], divided(score_BK, self.temperature)
        loss_BN = jax.nn.relu(self.margin - (score_BK[:, :1] - score_BK[:, 1:]))
        return mean_of_negatives(loss_BN, ids_BK), compared(score_BK, ids_BK)


LOSSES.register("two_way_nll", TwoWayNLL)
LOSSES.register("multi_negative_nll", MultiNegativeNLL)
LOSSES.register("triplet", Triplet)
