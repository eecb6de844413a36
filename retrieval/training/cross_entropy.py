"""Cross-entropy of a softmax over many candidates that never holds the matrix of all scores.

Scores are computed for a block of candidates at a time, in the forward pass and once more in the backward pass, which
needs no more than each row's normalizer. Memory grows with rows x block, not with rows x candidates.

Matryoshka (Kusupati et al. 2022) is the same softmax of the first dimensions of all embeddings, once for each of some
sizes. What a size adds to an inner product is the product of its own segment, so that all sizes cost the products of
one; what makes a beginning as long as 1 again is a factor of it, which is trained through outside.

Letters of shapes: B anchors, N candidates of the global batch, T blocks, C candidates of a block, E embedding size,
G sizes that are compared, P ids of an anchor, Q ids of a candidate.
"""

import functools
import itertools
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
      scale_NG: factors of the inner products of each size, as of `inverse_lengths`; None for a factor of 1.
    """

    embedding_NE: jax.Array
    bias_N: jax.Array
    ids_NQ: jax.Array
    scale_NG: jax.Array | None = None


class Anchors(NamedTuple):
    """The rows of this device; `own_B` is the place of each one's own positive among the candidates, and `scale_BG` as
    of `Candidates`. No negative's score is greater than `limit_BG`: such a candidate is taken for a false one, and left
    out."""

    embedding_BE: jax.Array
    own_B: jax.Array
    ids_BP: jax.Array
    scale_BG: jax.Array | None = None
    limit_BG: jax.Array | None = None


class _Settings(NamedTuple):
    temperature: float
    block: int
    mean: bool
    span: int
    sizes: tuple[int, ...]
    weights: tuple[float, ...]


def inverse_lengths(embedding_XE: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """1 / the length of the first dimensions of a vector, for each of the sizes, [X, G]; of zeros 10^12."""
    squares_XG = jnp.stack([jnp.square(embedding_XE[:, a:b]).sum(axis=1) for a, b in _segments(sizes)], axis=1)
    return 1 / jnp.sqrt(jnp.maximum(jnp.cumsum(squares_XG, axis=1), 1e-24))


def cross_entropy(
    anchors: Anchors,
    candidates: Candidates,
    temperature: float,
    block: int,
    mean: bool = False,
    groups: int = 1,
    sizes: tuple[int, ...] = (),
    weights: tuple[float, ...] = (),
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """-log of a positive's share among itself and the negatives, with logits inner product / temperature + bias.

    Args:
      mean: whether the loss is the mean over all positives of an anchor, or that of its own one alone. No positive is
        ever a negative.
      groups: the candidates are cut into so many equal parts, and an anchor sees that of its own positive alone.
      sizes: how many dimensions are compared, the first ones, ascending; () for all of them alone.
      weights: of the sizes, whose losses are added up; () for 1 each.

    Returns:
      The loss [B], and of the last size the own positive's score (inner product x factors), the greatest of the
      negatives', false ones too, and how many of these are left out, all [B]. Only the loss is differentiable, by the
      embeddings and the factors.
    """
    span = len(candidates.ids_NQ) // groups
    sizes = sizes or (anchors.embedding_BE.shape[1],)
    settings = _Settings(temperature, block, mean, span, sizes, weights or (1.0,) * len(sizes))
    return _cross_entropy(anchors, candidates, settings)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _cross_entropy(anchors: Anchors, candidates: Candidates, settings: _Settings) -> Any:
    return _forward(anchors, candidates, settings)[0]


def _forward(anchors: Anchors, candidates: Candidates, settings: _Settings) -> tuple:
    temperature, block, mean, _, sizes, weights = settings

    def add(carry: tuple, given: tuple) -> tuple[tuple, None]:
        largest_GB, total_GB, positive_GB, rival_GB, false_GB = carry
        score_GBC, own_BC, other_BC, outside_BC = _compare(anchors, settings, *given)
        left_out_BC = other_BC | outside_BC
        false_GBC = _above(anchors, score_GBC) & ~own_BC & ~left_out_BC
        is_out_GBC = false_GBC | (own_BC | left_out_BC if mean else left_out_BC)
        false_GB += false_GBC.sum(axis=2)
        logit_GBC = jnp.where(is_out_GBC, -jnp.inf, score_GBC / temperature + given[0].bias_N)
        new_GB = jnp.maximum(largest_GB, logit_GBC.max(axis=2))
        total_GB = total_GB * jnp.exp(largest_GB - new_GB) + jnp.exp(logit_GBC - new_GB[:, :, None]).sum(axis=2)
        positive_GB += jnp.where(own_BC, score_GBC, 0).sum(axis=2)
        rival_GB = jnp.maximum(rival_GB, jnp.where(own_BC | left_out_BC, -jnp.inf, score_GBC).max(axis=2))
        return (new_GB, total_GB, positive_GB, rival_GB, false_GB), None

    zero_GB = jnp.stack([jnp.zeros_like(anchors.own_B, jnp.float32)] * len(sizes))
    # A finite start: a block may hold nothing but candidates that are left out, and -inf - -inf is NaN.
    start = (zero_GB + jnp.finfo(jnp.float32).min, zero_GB, zero_GB, zero_GB - jnp.inf, zero_GB)
    (largest_GB, total_GB, positive_GB, rival_GB, false_GB), _ = jax.lax.scan(add, start, _blocks(candidates, block))
    normalizer_GB = largest_GB + jnp.log(total_GB)
    of_mean = ()
    if mean:
        loss_GB, *of_mean = _mean_over_positives(anchors, candidates, normalizer_GB, settings)
    else:
        loss_GB = normalizer_GB - positive_GB / temperature - _take(candidates.bias_N, anchors.own_B)
    loss_B = sum(weight * x_B for weight, x_B in zip(weights, loss_GB))
    return (loss_B, positive_GB[-1], rival_GB[-1], false_GB[-1]), (anchors, candidates, normalizer_GB, *of_mean)


def _mean_over_positives(
    anchors: Anchors, candidates: Candidates, normalizer_GB: jax.Array, settings: _Settings
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The mean of -log of each positive's share, the mean of the negatives' shares beside each, and the positives.

    Args:
      normalizer_GB: of the negatives alone; -inf where there are none.
    """

    def add(carry: tuple, given: tuple) -> tuple[tuple, None]:
        score_GBC, own_BC, other_BC, _ = _compare(anchors, settings, *given)
        is_positive_BC = own_BC | other_BC
        lead_GBC = normalizer_GB[:, :, None] - (score_GBC / settings.temperature + given[0].bias_N)
        terms = (jax.nn.softplus(lead_GBC), jax.nn.sigmoid(lead_GBC), jnp.ones_like(lead_GBC))
        return tuple(sum_GB + jnp.where(is_positive_BC, x, 0).sum(axis=2) for sum_GB, x in zip(carry, terms)), None

    start = (jnp.zeros_like(normalizer_GB),) * 3
    (loss_GB, pull_GB, count_GB), _ = jax.lax.scan(add, start, _blocks(candidates, settings.block))
    return loss_GB / count_GB, pull_GB / count_GB, count_GB


def _backward(settings: _Settings, residuals: tuple, gradients: tuple) -> tuple[Anchors, Candidates]:
    anchors, candidates, normalizer_GB, *of_mean = residuals
    temperature, block, mean, _, sizes, weights = settings
    scale_GB1 = jnp.stack([weight * gradients[0] / temperature for weight in weights])[:, :, None]

    def add(carry: Any, given: tuple) -> tuple[Any, Any]:
        score_GBC, own_BC, other_BC, outside_BC = _compare(anchors, settings, *given)
        relative_GBC = score_GBC / temperature + given[0].bias_N - normalizer_GB[:, :, None]
        out_GBC = outside_BC | _above(anchors, score_GBC) & ~own_BC & ~other_BC
        if mean:
            pull_GB, count_GB = of_mean
            of_positive_GBC = -jax.nn.sigmoid(-relative_GBC) / count_GB[:, :, None]
            of_negative_GBC = pull_GB[:, :, None] * jnp.exp(relative_GBC)
            gradient_GBC = jnp.where(own_BC | other_BC, of_positive_GBC, of_negative_GBC)
            gradient_GBC = scale_GB1 * jnp.where(out_GBC, 0, gradient_GBC)
        else:
            gradient_GBC = scale_GB1 * (jnp.where(other_BC | out_GBC, 0, jnp.exp(relative_GBC)) - own_BC)
        of_anchors, of_block = _of_scores(gradient_GBC, score_GBC, anchors, given[0], sizes)
        return jax.tree.map(jnp.add, carry, of_anchors), of_block

    start = jax.tree.map(jnp.zeros_like, (anchors.embedding_BE, anchors.scale_BG))
    (gradient_BE, gradient_BG), of_blocks = jax.lax.scan(add, start, _blocks(candidates, block))
    N = len(candidates.ids_NQ)
    gradient_NE, gradient_NG = jax.tree.map(lambda x_TCY: x_TCY.reshape(-1, x_TCY.shape[2])[:N], of_blocks)
    if gradient_BG is not None:  # of their logarithms
        gradient_BG, gradient_NG = gradient_BG / anchors.scale_BG, gradient_NG / candidates.scale_NG
    none: Any = None  # nothing is trained by a bias, a place, an id or a limit
    return Anchors(gradient_BE, none, none, gradient_BG, none), Candidates(gradient_NE, none, none, gradient_NG)


_cross_entropy.defvjp(_forward, _backward)


def _segments(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """The dimensions that each size adds, from and to."""
    return list(zip((0, *sizes), sizes))


def _factors(anchors: Anchors, block: Candidates) -> Any:
    """What makes scores of inner products, [G, B, C]."""
    scale_BG: Any = anchors.scale_BG
    scale_CG: Any = block.scale_NG
    return scale_BG.T[:, :, None] * scale_CG.T[:, None]


def _above(anchors: Anchors, score_GBC: jax.Array) -> jax.Array:
    """Which scores are above the limits."""
    if anchors.limit_BG is None:
        return jnp.zeros_like(score_GBC, bool)
    return score_GBC > anchors.limit_BG.T[:, :, None]


def _of_scores(
    gradient_GBC: jax.Array, score_GBC: jax.Array, anchors: Anchors, block: Candidates, sizes: tuple[int, ...]
) -> tuple:
    """Gradients of anchors and of a block, each by embeddings and logarithms of factors, from those of the scores."""
    of_scales = None, None
    if anchors.scale_BG is not None:
        of_logarithm_GBC = gradient_GBC * score_GBC
        of_scales = of_logarithm_GBC.sum(axis=2).T, of_logarithm_GBC.sum(axis=1).T
        gradient_GBC *= _factors(anchors, block)
    # A segment is a part of its own size and of all later ones.
    sums_BC = list(itertools.accumulate(gradient_GBC[::-1]))[::-1]
    of_anchors, of_block = [], []
    for (a, b), sum_BC in zip(_segments(sizes), sums_BC):
        of_anchors.append(_product("bc,ce->be", sum_BC, block.embedding_NE[:, a:b]))
        of_block.append(_product("bc,be->ce", sum_BC, anchors.embedding_BE[:, a:b], _everywhere()))
    return (jnp.concatenate(of_anchors, axis=1), of_scales[0]), (jnp.concatenate(of_block, axis=1), of_scales[1])


def _blocks(candidates: Candidates, block: int) -> tuple[Candidates, jax.Array]:
    """Candidates in blocks [T, C, ...], and the number of each; the last block may end with zeros, of number -1."""
    N = len(candidates.ids_NQ)
    C = min(block, N)
    padding = -N % C

    def cut(x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, C, *x.shape[1:])

    return jax.tree.map(cut, candidates), cut(jnp.arange(1, N + 1)) - 1


def _compare(
    anchors: Anchors, settings: _Settings, block: Candidates, number_C: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Scores of a block [G, B, C], and which of it is the anchor's own, which another positive, which outside [B, C].

    Outside are padding and what is not among the `span` candidates of the anchor's group.
    """
    parts = [(anchors.embedding_BE[:, a:b], block.embedding_NE[:, a:b]) for a, b in _segments(settings.sizes)]
    products = [_product("be,ce->bc", anchor_BS, block_CS) for anchor_BS, block_CS in parts]
    score_GBC, span = jnp.stack(list(itertools.accumulate(products))), settings.span
    if anchors.scale_BG is not None:
        score_GBC *= _factors(anchors, block)
    own_BC = anchors.own_B[:, None] == number_C
    if block.ids_NQ.shape[1] == 1:
        is_positive_BC = contain(anchors.ids_BP, block.ids_NQ[:, 0])
    else:
        is_positive_BC = contain(block.ids_NQ, anchors.ids_BP[:, 0]).T
    # The number of padding is -1, and so is that of its group.
    outside_BC = (anchors.own_B // span)[:, None] != number_C // span
    return score_GBC, own_BC, is_positive_BC & ~own_BC & ~outside_BC, outside_BC


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
