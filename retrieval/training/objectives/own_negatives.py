"""Losses of an example's own documents: its positive against its hard negatives, never against another example's.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then N hard negatives). Copies of
the positive, by id, do not count as negatives. Where no negative counts, the loss is 0.
"""

import dataclasses

import jax
import jax.numpy as jnp

from retrieval.training.candidates import OfCandidates, candidate_mask, mean_of_negatives
from retrieval.training.loss_kind import LOSSES, Batch


@dataclasses.dataclass(frozen=True)
class TwoWayNLL(OfCandidates):
    """The positive against each hard negative alone.

        loss = mean over negatives n of log(1 + exp((s_n - s_p) / temperature))

    ANCE's loss (Xiong et al. 2021), also called pairwise logistic loss or RankNet. Take it with few negatives of which
    each should count alike, such as those that ANCE mines anew.
    """

    def of_scores(self, score_BK: jax.Array, ids_BK: jax.Array, batch: Batch) -> jax.Array:
        """As `OfCandidates.of_scores`."""
        loss_BN = jax.nn.softplus(score_BK[:, 1:] - score_BK[:, :1])
        return mean_of_negatives(loss_BN, ids_BK)


@dataclasses.dataclass(frozen=True)
class MultiNegativeNLL(OfCandidates):
    """Softmax of the positive among its own example's documents.

        loss = -log(exp(s_p / temperature) / sum over the example's documents d of exp(s_d / temperature))

    The listwise loss of rerankers: ListNet with one relevant document, localised contrastive estimation (Gao et al.
    2021). Take it for a reranker with hard negatives; for towers the in-batch softmax has more negatives for nothing.
    """

    def of_scores(self, score_BK: jax.Array, ids_BK: jax.Array, batch: Batch) -> jax.Array:
        """As `OfCandidates.of_scores`."""
        counted_BK = jnp.where(candidate_mask(ids_BK), score_BK, -jnp.inf)
        return jax.nn.logsumexp(counted_BK, axis=1) - score_BK[:, 0]


@dataclasses.dataclass(frozen=True)
class Triplet(OfCandidates):
    """A margin between the positive and each hard negative.

        loss = mean over negatives n of max(0, margin - (s_p - s_n) / temperature)

    torch's MarginRankingLoss, sentence-transformers' TripletLoss with scores in place of distances (Lu et al. 2021,
    section 4.2). A pair beyond the margin trains nothing: the softmax losses learn more of the same triples.
    """

    margin: float = 1.0

    def of_scores(self, score_BK: jax.Array, ids_BK: jax.Array, batch: Batch) -> jax.Array:
        """As `OfCandidates.of_scores`."""
        loss_BN = jax.nn.relu(self.margin - (score_BK[:, :1] - score_BK[:, 1:]))
        return mean_of_negatives(loss_BN, ids_BK)


LOSSES.register("two_way_nll", TwoWayNLL)
LOSSES.register("multi_negative_nll", MultiNegativeNLL)
LOSSES.register("triplet", Triplet)
