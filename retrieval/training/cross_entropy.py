"""Cross-entropy of a softmax over many candidates that never holds the matrix of all scores.

Scores are computed for a block of candidates at a time, in the forward pass and once more in the backward pass, which
needs no more than each row's normalizer. Memory grows with rows x block, not with rows x candidates.

Letters of shapes: B anchors, N candidates of the global batch, T blocks, C candidates of a block, E embedding size,
P ids of an anchor, Q ids of a candidate.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

_IDS = 64  # of a list of known positives that are compared at a time


class Candidates(NamedTuple):
    """What anchors are compared with, whole on every device.

    Attributes:
      bias_N: added to the logits.
      ids_NQ: a candidate is a positive of an anchor where one of its ids is one of the anchor's; one of the two has
        one id.
    """

    embedding_NE: jax.Array
    bias_N: jax.Array
    ids_NQ: jax.Array


class Anchors(NamedTuple):
    """The rows of this device; `own_B` is the place of each one's own positive among the candidates."""

    embedding_BE: jax.Array
    own_B: jax.Array
    ids_BP: jax.Array


def cross_entropy(
    anchors: Anchors, candidates: Candidates, temperature: float, block: int, mean: bool = False, groups: int = 1
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """-log of a positive's share among itself and the negatives, with logits inner product / temperature + bias.

    Args:
      mean: whether the loss is the mean over all positives of an anchor, or that of its own one alone. No positive is
        ever a negative.
      groups: the candidates are cut into so many equal parts, and an anchor sees that of its own positive alone.

    Returns:
      The loss [B], the own positive's inner product [B], and the greatest of the negatives' [B]. Only the loss is
      differentiable, by the embeddings.
    """
    span = len(candidates.ids_NQ) // groups
    return _cross_entropy(anchors, candidates, temperature, block, mean, span)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _cross_entropy(
    anchors: Anchors, candidates: Candidates, temperature: float, block: int, mean: bool, span: int
) -> Any:
    return _forward(anchors, candidates, temperature, block, mean, span)[0]


def _forward(anchors: Anchors, candidates: Candidates, temperature: float, block: int, mean: bool, span: int) -> tuple:
    def add(carry: tuple, given: tuple) -> tuple[tuple, None]:
        largest_B, total_B, positive_B, rival_B = carry
        score_BC, own_BC, other_BC, outside_BC = _compare(anchors, span, *given)
        left_out_BC = other_BC | outside_BC
        is_out_BC = own_BC | left_out_BC if mean else left_out_BC
        logit_BC = jnp.where(is_out_BC, -jnp.inf, score_BC / temperature + given[0].bias_N)
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
    if mean:
        loss_B, pull_B, count_B = _mean_over_positives(anchors, candidates, normalizer_B, temperature, block, span)
        return (loss_B, positive_B, rival_B), (anchors, candidates, normalizer_B, pull_B, count_B)
    own_bias_B = _take(candidates.bias_N, anchors.own_B)
    loss_B = normalizer_B - positive_B / temperature - own_bias_B
    return (loss_B, positive_B, rival_B), (anchors, candidates, normalizer_B)


def _mean_over_positives(
    anchors: Anchors, candidates: Candidates, normalizer_B: jax.Array, temperature: float, block: int, span: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The mean of -log of each positive's share, the mean of the negatives' shares beside each, and the positives.

    Args:
      normalizer_B: of the negatives alone; -inf where there are none.
    """

    def add(carry: tuple, given: tuple) -> tuple[tuple, None]:
        score_BC, own_BC, other_BC, _ = _compare(anchors, span, *given)
        is_positive_BC = own_BC | other_BC
        lead_BC = normalizer_B[:, None] - (score_BC / temperature + given[0].bias_N)
        terms = (jax.nn.softplus(lead_BC), jax.nn.sigmoid(lead_BC), jnp.ones_like(lead_BC))
        return tuple(sum_B + jnp.where(is_positive_BC, x, 0).sum(axis=1) for sum_B, x in zip(carry, terms)), None

    start = (jnp.zeros_like(normalizer_B),) * 3
    (loss_B, pull_B, count_B), _ = jax.lax.scan(add, start, _blocks(candidates, block))
    return loss_B / count_B, pull_B / count_B, count_B


def _backward(
    temperature: float, block: int, mean: bool, span: int, residuals: tuple, gradients: tuple
) -> tuple[Anchors, Candidates]:
    anchors, candidates, normalizer_B, *of_mean = residuals
    scale_B1 = (gradients[0] / temperature)[:, None]

    def add(gradient_BE: jax.Array, given: tuple) -> tuple[jax.Array, jax.Array]:
        score_BC, own_BC, other_BC, outside_BC = _compare(anchors, span, *given)
        relative_BC = score_BC / temperature + given[0].bias_N - normalizer_B[:, None]
        if mean:
            pull_B, count_B = of_mean
            of_positive_BC = -jax.nn.sigmoid(-relative_BC) / count_B[:, None]
            of_negative_BC = pull_B[:, None] * jnp.exp(relative_BC)
            gradient_BC = jnp.where(own_BC | other_BC, of_positive_BC, of_negative_BC)
            gradient_BC = scale_B1 * jnp.where(outside_BC, 0, gradient_BC)
        else:
            gradient_BC = scale_B1 * (jnp.where(other_BC | outside_BC, 0, jnp.exp(relative_BC)) - own_BC)
        gradient_BE += _product("bc,ce->be", gradient_BC, given[0].embedding_NE)
        return gradient_BE, _product("bc,be->ce", gradient_BC, anchors.embedding_BE, _everywhere())

    start_BE = jnp.zeros_like(anchors.embedding_BE)
    gradient_BE, gradient_TCE = jax.lax.scan(add, start_BE, _blocks(candidates, block))
    N, E = candidates.embedding_NE.shape
    gradient_NE = gradient_TCE.reshape(-1, E)[:N]
    none: Any = None  # nothing is trained by a bias, a place or an id
    return Anchors(gradient_BE, none, none), Candidates(gradient_NE, none, none)


_cross_entropy.defvjp(_forward, _backward)


def _blocks(candidates: Candidates, block: int) -> tuple[Candidates, jax.Array]:
    """Candidates in blocks [T, C, ...], and the number of each; the last block may end with zeros, of number -1."""
    N = len(candidates.ids_NQ)
    C = min(block, N)
    padding = -N % C

    def cut(x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, C, *x.shape[1:])

    return jax.tree.map(cut, candidates), cut(jnp.arange(1, N + 1)) - 1


def _compare(
    anchors: Anchors, span: int, block: Candidates, number_C: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Inner products with a block, and which of it is the anchor's own, which another positive, which outside; [B, C].

    Outside are padding and what is not among the `span` candidates of the anchor's group.
    """
    score_BC = _product("be,ce->bc", anchors.embedding_BE, block.embedding_NE)
    own_BC = anchors.own_B[:, None] == number_C
    if block.ids_NQ.shape[1] == 1:
        is_positive_BC = contain(anchors.ids_BP, block.ids_NQ[:, 0])
    else:
        is_positive_BC = contain(block.ids_NQ, anchors.ids_BP[:, 0]).T
    # The number of padding is -1, and so is that of its group.
    outside_BC = (anchors.own_B // span)[:, None] != number_C // span
    return score_BC, own_BC, is_positive_BC & ~own_BC & ~outside_BC, outside_BC


def contain(list_XP: jax.Array, id_Y: jax.Array) -> jax.Array:
    """Whether a list has an id, [X, Y]; some places of the lists at a time, for a query may have 1,000 positives."""
    more = -list_XP.shape[1] % min(_IDS, list_XP.shape[1])
    full_XP = jnp.concatenate([list_XP, jnp.repeat(list_XP[:, :1], more, axis=1)], axis=1)
    parts_TXI = jnp.stack(jnp.split(full_XP, max(1, full_XP.shape[1] // _IDS), axis=1))

    def contain(part_XI: jax.Array) -> jax.Array:
        return (part_XI[:, None] == id_Y[:, None]).any(axis=2)

    found_XY, _ = jax.lax.scan(
        lambda contained, part: (contained | contain(part), None), contain(parts_TXI[0]), parts_TXI[1:]
    )
    return found_XY


def _product(equation: str, a: jax.Array, b: jax.Array, out_sharding: P | None = None) -> jax.Array:
    # The default precision on an accelerator would round the embeddings to bfloat16 or TF32.
    return jnp.einsum(equation, a, b, precision=jax.lax.Precision.HIGHEST, out_sharding=out_sharding)


def _take(value_N: jax.Array, index_B: jax.Array) -> jax.Array:
    return value_N.at[index_B].get(out_sharding=jax.typeof(index_B).sharding)


def _everywhere() -> P | None:
    """The sharding of a sum over all devices' anchors."""
    return None if jax.sharding.get_abstract_mesh().empty else P()
