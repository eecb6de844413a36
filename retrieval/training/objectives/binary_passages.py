"""Binary passages (BPR, Yamada et al. 2021): documents as bits, found by a query's bits and ranked by its numbers.

Letters of shapes: B queries of the global batch, K documents of each, N all of them (B * K), E embedding size, P known
positives of a query.
"""

import jax
import jax.numpy as jnp

from retrieval.runtime.arrays import on_every_device
from retrieval.training.candidate_blocks import contain, product
from retrieval.training.loss_kind import EMBEDDINGS, LOSSES, TEMPERATURE, Batch, Loss, Metrics
from retrieval.training.objectives.in_batch_softmax import in_batch_softmax


def signs(embedding_XE: jax.Array) -> jax.Array:
    """1 for a number of at least 0, else -1; with the gradient of tanh, straight through."""
    soft_XE = jnp.tanh(embedding_XE)
    return jnp.where(embedding_XE >= 0, 1.0, -1.0) + (soft_XE - jax.lax.stop_gradient(soft_XE))  # whole numbers


def binary_passages(
    query_BE: jax.Array,
    document_BKE: jax.Array,
    batch: Batch,
    *,
    temperature: float = 1.0,
    margin: float = 0.1,
) -> tuple[jax.Array, Metrics]:
    """The in-batch softmax of queries and documents as signs, which ranks, and what finds candidates: the mean over
    negatives of max(0, margin - (score of the positive - score of a negative)), both sides as signs.

    Scores of signs are E - 2 x the Hamming distance. No known positive of a query is its negative, by id.

    Returns:
      The loss [B]; the metrics of the softmax; 'recall@1 of bits' [B]: 1 where the positive's score of signs is greater
      than that of every negative.
    """
    B, K, E = document_BKE.shape
    ids_BK = batch["document_id"]
    known_BP = batch.get("positive_ids", ids_BK[:, :1])
    query_BE, document_BKE = query_BE.astype(jnp.float32), signs(document_BKE.astype(jnp.float32))
    loss_B, metrics = in_batch_softmax(
        query_BE, document_BKE, ids_BK, None, temperature=temperature, positive_ids_BP=known_BP
    )
    bits_BE, bits_NE = signs(query_BE), on_every_device(document_BKE.reshape(B * K, E))
    score_BN = product("be,ne->bn", bits_BE, bits_NE)
    own_B = (bits_BE * document_BKE[:, 0]).sum(axis=1)
    negative_BN = ~contain(known_BP, on_every_device(ids_BK.reshape(B * K)))
    hinge_BN = jnp.where(negative_BN, jax.nn.relu(margin - own_B[:, None] + score_BN), 0)
    rival_B = jnp.where(negative_BN, score_BN, -jnp.inf).max(axis=1)
    loss_B += hinge_BN.sum(axis=1) / jnp.maximum(negative_BN.sum(axis=1), 1)
    return loss_B, metrics | {"recall@1 of bits": (own_B > rival_B).astype(jnp.float32)}


LOSSES.register(
    "binary_passages",
    Loss(
        binary_passages,
        EMBEDDINGS,
        "softmax over documents as bits, and a margin between bits of both sides (BPR)",
        options=(TEMPERATURE, "train.margin"),
        takes_positives=lambda options: True,
    ),
)
