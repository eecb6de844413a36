"""Cross-entropy of a softmax over many candidates that never holds the matrix of all scores.

Scores are computed for a block of candidates at a time, in the forward pass and once more in the backward pass, which
needs no more than each row's normalizer. Memory grows with rows x block, not with rows x candidates.

Letters of shapes: B anchors, N candidates of the global batch, T blocks, C candidates of a block, E embedding size.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


class Candidates(NamedTuple):
    """What anchors are compared with, whole on every device.

    Attributes:
      bias_N: added to the logits.
      ids_N: equal for copies of a candidate.
    """

    embedding_NE: jax.Array
    bias_N: jax.Array
    ids_N: jax.Array


class Anchors(NamedTuple):
    """The rows of this device; `own_B` is the place of each one's positive among the candidates, `ids_B` its id."""

    embedding_BE: jax.Array
    own_B: jax.Array
    ids_B: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def cross_entropy(
    anchors: Anchors, candidates: Candidates, temperature: float, block: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """-log of the positive's share, with logits inner product / temperature + bias; other copies of it are left out.

    Returns:
      The loss [B], the positive's inner product [B], and the greatest of those that are no copy of it [B]. Only the
      loss is differentiable, by the embeddings.
    """
    return _forward(anchors, candidates, temperature, block)[0]


def _forward(anchors: Anchors, candidates: Candidates, temperature: float, block: int) -> tuple:
    def add(carry: tuple, given: tuple) -> tuple[tuple, None]:
        largest_B, total_B, positive_B, rival_B = carry
        score_BC, own_BC, left_out_BC = _compare(anchors, *given)
        logit_BC = jnp.where(left_out_BC, -jnp.inf, score_BC / temperature + given[0].bias_N)
        new_B = jnp.maximum(largest_B, logit_BC.max(axis=1))
        total_B = total_B * jnp.exp(largest_B - new_B) + jnp.exp(logit_BC - new_B[:, None]).sum(axis=1)
        positive_B += jnp.where(own_BC, score_BC, 0).sum(axis=1)
        rival_B = jnp.maximum(rival_B, jnp.where(own_BC | left_out_BC, -jnp.inf, score_BC).max(axis=1))
        return (new_B, total_B, positive_B, rival_B), None

    zero_B = jnp.zeros_like(anchors.own_B, jnp.float32)
    # A finite start: a block may hold nothing but candidates that are left out, and -inf - -inf is NaN.
    start = (zero_B + jnp.finfo(jnp.float32).min, zero_B, zero_B, zero_B - jnp.inf)
    (largest_B, total_B, positive_B, rival_B), _ = jax.lax.scan(add, start, _blocks(candidates, block))
    normalizer_B = largest_B + jnp.log(total_B)
    own_bias_B = _take(candidates.bias_N, anchors.own_B)
    loss_B = normalizer_B - positive_B / temperature - own_bias_B
    return (loss_B, positive_B, rival_B), (anchors, candidates, normalizer_B)


def _backward(temperature: float, block: int, kept: tuple, gradients: tuple) -> tuple[Anchors, Candidates]:
    anchors, candidates, normalizer_B = kept
    scale_B1 = (gradients[0] / temperature)[:, None]

    def add(gradient_BE: jax.Array, given: tuple) -> tuple[jax.Array, jax.Array]:
        score_BC, own_BC, left_out_BC = _compare(anchors, *given)
        share_BC = jnp.exp(score_BC / temperature + given[0].bias_N - normalizer_B[:, None])
        gradient_BC = scale_B1 * (jnp.where(left_out_BC, 0, share_BC) - own_BC)
        gradient_BE += _product("bc,ce->be", gradient_BC, given[0].embedding_NE)
        return gradient_BE, _product("bc,be->ce", gradient_BC, anchors.embedding_BE, _everywhere())

    start_BE = jnp.zeros_like(anchors.embedding_BE)
    gradient_BE, gradient_TCE = jax.lax.scan(add, start_BE, _blocks(candidates, block))
    N, E = candidates.embedding_NE.shape
    gradient_NE = gradient_TCE.reshape(-1, E)[:N]
    return Anchors(gradient_BE, None, None), Candidates(gradient_NE, None, None)


cross_entropy.defvjp(_forward, _backward)


def _blocks(candidates: Candidates, block: int) -> tuple[Candidates, jax.Array]:
    """Candidates in blocks [T, C, ...], and the number of each; the last block may end with zeros, of number -1."""
    N = len(candidates.ids_N)
    C = min(block, N)
    padding = -N % C

    def cut(x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, C, *x.shape[1:])

    return jax.tree.map(cut, candidates), cut(jnp.arange(1, N + 1)) - 1


def _compare(anchors: Anchors, block: Candidates, number_C: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Inner products with a block, which of it is the anchor's own, and what is left out; [B, C]."""
    score_BC = _product("be,ce->bc", anchors.embedding_BE, block.embedding_NE)
    own_BC = anchors.own_B[:, None] == number_C
    return score_BC, own_BC, ((anchors.ids_B[:, None] == block.ids_N) & ~own_BC) | (number_C < 0)


def _product(equation: str, a: jax.Array, b: jax.Array, out_sharding: P | None = None) -> jax.Array:
    # The default precision on an accelerator would round the embeddings to bfloat16 or TF32.
    return jnp.einsum(equation, a, b, precision=jax.lax.Precision.HIGHEST, out_sharding=out_sharding)


def _take(value_N: jax.Array, index_B: jax.Array) -> jax.Array:
    return value_N.at[index_B].get(out_sharding=jax.typeof(index_B).sharding)


def _everywhere() -> P | None:
    """The sharding of a sum over all devices' anchors."""
    return None if jax.sharding.get_abstract_mesh().empty else P()
