"""Losses of tokens, and of a latent variable: one value per example; the caller owns the mean.

Letters of shapes: B examples of the global batch, P tokens to predict, V vocabulary, Z size of a latent variable.
"""

import jax
import jax.numpy as jnp

from retrieval.common.runtime.arrays import first_highest

Metrics = dict[str, jax.Array]


def token_cross_entropy(
    logits_BPV: jax.Array, labels_BP: jax.Array, weights_BP: jax.Array, *, smoothing: float = 0.0
) -> tuple[jax.Array, Metrics]:
    """Cross-entropy of tokens: of the masked ones (Devlin et al. 2019), or of all that a decoder writes again.

    Each example's sum over its tokens is scaled by B / (tokens of the batch): the mean of the result over the batch is
    the mean over tokens, not over examples with few and many of them alike.

    Args:
      weights_BP: 1 for a token to predict, 0 for a place that is not used.
      smoothing: from 0 to below 1, the share of the label that is spread over the whole vocabulary (Szegedy et al.
        2016, section 7).

    Returns:
      The loss [B], and 'accuracy' [B], scaled likewise.
    """
    weights_BP = weights_BP.astype(jnp.float32)
    wanted_BP, normalizer_BP, hit_BP = of_labels(logits_BPV, labels_BP)
    if smoothing:
        wanted_BP += smoothing * (logits_BPV.mean(axis=-1, dtype=jnp.float32) - wanted_BP)
    loss_BP = normalizer_BP - wanted_BP
    scale = len(weights_BP) / jnp.maximum(weights_BP.sum(), 1)
    return scale * (weights_BP * loss_BP).sum(axis=1), {"accuracy": scale * (weights_BP * hit_BP).sum(axis=1)}


def of_labels(logits_BPV: jax.Array, labels_BP: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The logits of the labels, the logarithms of the softmax's denominators, and whether no logit is higher; [B, P].

    A label's log-probability, in nats, is the first less the second.
    """
    logits_BPV = logits_BPV.astype(jnp.float32)
    label_BPV = jnp.arange(logits_BPV.shape[-1]) == labels_BP[:, :, None]
    wanted_BP = jnp.where(label_BPV, logits_BPV, 0).sum(axis=-1)
    return wanted_BP, jax.nn.logsumexp(logits_BPV, axis=-1), first_highest(logits_BPV) == labels_BP


def free_bits(divergence_BZ: jax.Array, least: float) -> jax.Array:
    """The KL divergence of a latent variable, [B], in nats, of which `least` in every dimension is free.

    Below it no gradient pushes the variable to say nothing (Kingma et al. 2016; Li et al. 2020, for Optimus).
    """
    return jnp.maximum(divergence_BZ, least).sum(axis=1)
