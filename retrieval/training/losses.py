"""Losses: embeddings or logits to one value per example; the caller owns the mean.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then the hard negatives),
N candidates of the global batch, E embedding size, P masked positions, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from retrieval.errors import UserError

Metrics = dict[str, jax.Array]


def in_batch_softmax(
    query_BE: jax.Array,
    document_BKE: jax.Array,
    document_ids_BK: jax.Array,
    log_q_BK: jax.Array | None,
    *,
    temperature: float = 1.0,
    symmetric: bool = False,
) -> tuple[jax.Array, Metrics]:
    """Sampled softmax over all documents of the global batch (Chang et al. 2020, section 2).

    The logit of a document is score / temperature - log Q(document), the positive's too (Bengio & Senecal 2008; for
    in-batch candidates Yi et al. 2019): Q is the chance of being drawn, so a document is not pushed away for being
    drawn often. Other copies of the positive, by id, are left out: no document is its own negative.

    Args:
      document_BKE: the positive is `document_BKE[:, 0]`.
      document_ids_BK: equal for copies of a document, in whatever column.
      log_q_BK: log Q, up to a constant; None for no correction.
      symmetric: whether to average with the softmax of each positive over the batch's queries. There the queries of
        other copies of the positive are left out, and nothing is corrected.

    Returns:
      The loss [B], and 'recall@1' [B]: 1 where the positive's score (not corrected) is greater than that of every
      candidate that is no copy of it, else 0; a tie is a miss.

    Raises:
      UserError: the temperature is not positive.
    """
    if not temperature > 0:
        raise UserError(f"temperature {temperature}: must be greater than 0")
    B, K, E = document_BKE.shape
    positive_ids_B = document_ids_BK[:, 0]
    score_BN = _scores(query_BE, document_BKE.reshape(B * K, E))
    own_BN, copy_BN = _own_and_copies(positive_ids_B, document_ids_BK.reshape(B * K))
    logit_BN = score_BN / temperature
    if log_q_BK is not None:
        logit_BN -= _on_every_device(log_q_BK.reshape(B * K).astype(jnp.float32))
    loss_B = _cross_entropy(logit_BN, own_BN, copy_BN)
    if symmetric:
        score_BB = _scores(document_BKE[:, 0], query_BE)
        reverse_B = _cross_entropy(score_BB / temperature, *_own_and_copies(positive_ids_B, positive_ids_B))
        loss_B = (loss_B + reverse_B) / 2
    rival_B = jnp.where(own_BN | copy_BN, -jnp.inf, score_BN).max(axis=1)
    return loss_B, {"recall@1": (_own(score_BN, own_BN) > rival_B).astype(jnp.float32)}


def mlm_cross_entropy(logits_BPV: jax.Array, labels_BP: jax.Array, weights_BP: jax.Array) -> tuple[jax.Array, Metrics]:
    """Cross-entropy of the masked tokens (Devlin et al. 2019).

    Each example's sum over its masked tokens is scaled by B / (masked tokens of the batch): the mean of the result over
    the batch is the mean over masked tokens, not over examples with few and many of them alike.

    Args:
      weights_BP: 1 for a masked token, 0 for a place that is not used.

    Returns:
      The loss [B], and 'accuracy' [B], scaled likewise.
    """
    logits_BPV = logits_BPV.astype(jnp.float32)
    weights_BP = weights_BP.astype(jnp.float32)
    label_BPV = jnp.arange(logits_BPV.shape[-1]) == labels_BP[:, :, None]
    loss_BP = jax.nn.logsumexp(logits_BPV, axis=-1) - jnp.where(label_BPV, logits_BPV, 0).sum(axis=-1)
    hit_BP = logits_BPV.argmax(axis=-1) == labels_BP
    scale = len(weights_BP) / jnp.maximum(weights_BP.sum(), 1)
    return scale * (weights_BP * loss_BP).sum(axis=1), {"accuracy": scale * (weights_BP * hit_BP).sum(axis=1)}


def _scores(anchor_BE: jax.Array, candidate_NE: jax.Array) -> jax.Array:
    """Inner products of this device's anchors with the candidates of all devices, float32 [B, N]."""
    anchor_BE, candidate_NE = anchor_BE.astype(jnp.float32), candidate_NE.astype(jnp.float32)
    # The default precision on an accelerator would round the embeddings to bfloat16 or TF32.
    return jnp.einsum("be,ne->bn", anchor_BE, _on_every_device(candidate_NE), precision=jax.lax.Precision.HIGHEST)


def _own_and_copies(ids_B: jax.Array, candidate_ids_N: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which candidate is the anchor's own, and which others have the same id; bool [B, N].

    The candidates are in the order of the anchors, N / B of each, its own first.
    """
    B, N = len(ids_B), len(candidate_ids_N)
    own_B = jnp.zeros_like(ids_B) + jnp.arange(0, N, N // B, dtype=ids_B.dtype)
    own_BN = own_B[:, None] == jnp.arange(N)
    return own_BN, (ids_B[:, None] == _on_every_device(candidate_ids_N)) & ~own_BN


def _cross_entropy(logit_BN: jax.Array, own_BN: jax.Array, left_out_BN: jax.Array) -> jax.Array:
    logit_BN = jnp.where(left_out_BN, -jnp.inf, logit_BN)
    return jax.nn.logsumexp(logit_BN, axis=1) - _own(logit_BN, own_BN)


def _own(value_BN: jax.Array, own_BN: jax.Array) -> jax.Array:
    return jnp.where(own_BN, value_BN, 0).sum(axis=1)


def _on_every_device(x: jax.Array) -> jax.Array:
    """The all-gather of a batch that is sharded over devices; without a mesh, the identity."""
    return x if jax.sharding.get_abstract_mesh().empty else jax.reshard(x, P())
