"""The quadruplet loss (Liu et al. 2021, QuadrupletBERT): a query, its positive, a simple and a hard negative.

Letters of shapes: B examples of the global batch, K documents of each, 2 or 3: the positive, a simple negative, a hard
negative. A hard negative with the positive's id is an empty slot. E embedding size.
"""

import dataclasses

import jax
import jax.numpy as jnp

from retrieval.common.errors import UserError
from retrieval.training.candidates import candidate_mask
from retrieval.training.loss_kind import EMBEDDINGS, LOSSES, Batch, Loss, Metrics

# Under the root, beside the sum of squares: the cosine of a zero vector is 0, and so is its gradient.
_SMALL = 1e-8


def distance(one_BE: jax.Array, other_BE: jax.Array) -> jax.Array:
    """1 - cosine, float32 [B], from 0 to 2 (equation 4)."""
    one_BE, other_BE = one_BE.astype(jnp.float32), other_BE.astype(jnp.float32)
    one_B, other_B = (jax.lax.rsqrt(jnp.square(x_BE).sum(axis=1) + _SMALL) for x_BE in (one_BE, other_BE))
    return 1 - (one_BE * other_BE).sum(axis=1) * (one_B * other_B)


@dataclasses.dataclass(frozen=True)
class Quadruplet(Loss):
    """Margins between the distances of a query, its positive, a simple and a hard negative.

        loss   = max(loss_h, loss_n)
        loss_n = max(0, d(q, p) - d(q, n) + margin)
        loss_h = max(0, d(q, p) - d(h, n) + hard_margin)

    QuadrupletBERT's loss (Liu et al. 2021, equation 3), with distances d = 1 - cosine of a query q, its positive p, a
    simple negative n and a hard one h. Take it to reproduce that paper.

    Where both are the same, the gradient is that of loss_n. An example without a hard negative has loss_n alone, which
    is the triplet loss. The hinges 'sum' adds the two up. 'chain' is what the paper says of the hard negative in words:
    it lies between the positive and the simple negative. It replaces the two with

        max(0, d(q, p) - d(q, h) + hard_margin) + max(0, d(q, h) - d(q, n) + margin)

    'triplets' is a control that the paper lacks, the triplet loss with either negative:

        max(0, d(q, p) - d(q, h) + hard_margin) + loss_n

    Attributes:
      hard_margin: -1 for `margin`.
      batch_sum: whether each loss is multiplied by B: the caller takes the mean, and so gets the sum.
    """

    inputs = EMBEDDINGS
    needs_negatives = of_cosines = True

    margin: float = 1.0
    hinges: str = "max"
    hard_margin: float = -1.0
    batch_sum: bool = False

    def __call__(self, query_BE: jax.Array, document_BKE: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of the embeddings of a batch, whose `document_id` [B, K] tells which hard slots are empty.

        Returns:
          The loss [B]; 'recall@1' [B], 1 where the positive is nearer than each negative, else 0; 'distance_positive',
          'distance_simple' and, of 3 documents, 'distance_hard' [B]: d(q, p), d(q, n) and d(h, n), the last so scaled
          that its mean is that of the examples with a hard negative; and 'active' [B], the share of hinges above 0.

        Raises:
          UserError: an example has another number of documents.
        """
        B, K, _ = document_BKE.shape
        if K not in (2, 3):
            way = "set config.data.negatives=2, or 1 for simple negatives alone"
            raise UserError(f"a quadruplet has a positive and two negatives, and an example here {K} documents: {way}")
        ids_BK, margin, hinges = batch["document_id"], self.margin, self.hinges
        hard_margin = margin if self.hard_margin == -1 else self.hard_margin
        has_hard_B = candidate_mask(ids_BK)[:, 2] if K == 3 else jnp.zeros_like(ids_BK[:, 0], bool)
        positive_BE, simple_BE, hard_BE = document_BKE[:, 0], document_BKE[:, 1], document_BKE[:, -1]
        positive_B, simple_B = distance(query_BE, positive_BE), distance(query_BE, simple_BE)
        asked_hard_B, hard_B = distance(query_BE, hard_BE), distance(hard_BE, simple_BE)
        simple_loss_B = jax.nn.relu(positive_B - simple_B + margin)
        first_B = jax.nn.relu(positive_B - (asked_hard_B if hinges in ("chain", "triplets") else hard_B) + hard_margin)
        second_B = jax.nn.relu(asked_hard_B - simple_B + margin) if hinges == "chain" else simple_loss_B
        joined_B = jnp.where(first_B > second_B, first_B, second_B) if hinges == "max" else first_B + second_B
        loss_B = jnp.where(has_hard_B, joined_B, simple_loss_B)
        active_B = jnp.where(has_hard_B, ((first_B > 0).astype(jnp.float32) + (second_B > 0)) / 2, simple_loss_B > 0)
        nearer_B = (positive_B < simple_B) & (~has_hard_B | (positive_B < asked_hard_B))
        metrics = {"recall@1": nearer_B.astype(jnp.float32), "active": active_B}
        metrics |= {"distance_positive": positive_B, "distance_simple": simple_B}
        if K == 3:
            share = has_hard_B.mean()
            metrics["distance_hard"] = jnp.where(has_hard_B, hard_B, 0) / jnp.where(share > 0, share, 1)
        return loss_B * (B if self.batch_sum else 1), metrics


LOSSES.register("quadruplet", Quadruplet)
