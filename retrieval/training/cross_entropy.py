"""Cross-entropy of a softmax over many candidates that never holds the matrix of all scores.

Scores are computed for a block of candidates at a time, in the forward pass and once more in the backward pass, which
needs no more than each row's normalizer. Memory grows with rows x block, not with rows x candidates.

Matryoshka (Kusupati et al. 2022) is the same softmax of the first dimensions of all embeddings, once for each of some
sizes. What a size adds to an inner product is the product of its own segment, so that all sizes cost the products of
one; what makes a beginning as long as 1 again is a factor of it, which is trained through outside.

Letters of shapes: B anchors, N candidates of the global batch, C candidates of a block, E embedding size, G sizes that
are compared.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from retrieval.training.candidate_blocks import Anchors, Candidates, Scores, blocks, compare, of_scores


class CrossEntropy(NamedTuple):
    """What `cross_entropy` gives, each [B]. Only the loss is differentiable: by embeddings and factors.

    Attributes:
      positive_B, rival_B: of the last size the own positive's score (inner product x factors), and the greatest of the
        negatives', false ones too.
      known_B, false_B, guided_B: candidates that are left out, each for the first reason that holds: by their id, by
        their score of the last size, and by the guide's.
    """

    loss_B: jax.Array
    positive_B: jax.Array
    rival_B: jax.Array
    known_B: jax.Array
    false_B: jax.Array
    guided_B: jax.Array


class _Settings(NamedTuple):
    temperature: float
    block: int
    mean: bool
    sizes: tuple[int, ...]
    span: int  # candidates of a group


class _Sums(NamedTuple):
    """What is added up over the blocks, for each size."""

    largest_GB: jax.Array
    total_GB: jax.Array
    positive_GB: jax.Array
    rival_GB: jax.Array
    known_GB: jax.Array
    false_GB: jax.Array
    guided_GB: jax.Array


_Block = tuple[Candidates, jax.Array]  # and their numbers, as `blocks` gives them


def cross_entropy(
    anchors: Anchors,
    candidates: Candidates,
    temperature: float,
    block: int,
    mean: bool = False,
    groups: int = 1,
    sizes: tuple[int, ...] = (),
) -> CrossEntropy:
    """-log of a positive's share among itself and the negatives, with logits inner product / temperature + bias.

    Args:
      mean: whether the loss is the mean over all positives of an anchor, or that of its own one alone. No positive is
        ever a negative.
      groups: the candidates are cut into so many equal parts, and an anchor sees that of its own positive alone.
      sizes: how many dimensions are compared, the first ones, ascending; () for all of them alone.
    """
    sizes = sizes or (anchors.embedding_BE.shape[1],)
    settings = _Settings(temperature, block, mean, sizes, len(candidates.ids_NQ) // groups)
    softmax: Any = _cross_entropy(anchors, candidates, settings)
    return softmax  # custom_vjp's stub says `object`


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _cross_entropy(anchors: Anchors, candidates: Candidates, settings: _Settings) -> CrossEntropy:
    return _forward(anchors, candidates, settings)[0]


def _forward(anchors: Anchors, candidates: Candidates, settings: _Settings) -> tuple[CrossEntropy, tuple]:
    zero_GB = jnp.stack([jnp.zeros_like(anchors.own_B, jnp.float32)] * len(settings.sizes))

    def add(sums: _Sums, block: _Block) -> tuple[_Sums, None]:
        scores, is_negative_GBC, logit_GBC = _compared(anchors, settings, block)
        own_BC, score_GBC = scores.own_BC, scores.score_GBC
        logit_GBC = jnp.where(is_negative_GBC if settings.mean else is_negative_GBC | own_BC, logit_GBC, -jnp.inf)
        largest_GB = jnp.maximum(sums.largest_GB, logit_GBC.max(axis=2))
        total_GB = sums.total_GB * jnp.exp(sums.largest_GB - largest_GB)
        no_rival_BC = own_BC | scores.positive_BC | scores.outside_BC
        return _Sums(
            largest_GB,
            total_GB + jnp.exp(logit_GBC - largest_GB[:, :, None]).sum(axis=2),
            sums.positive_GB + jnp.where(own_BC, score_GBC, 0).sum(axis=2),
            jnp.maximum(sums.rival_GB, jnp.where(no_rival_BC, -jnp.inf, score_GBC).max(axis=2)),
            sums.known_GB + scores.positive_BC.sum(axis=1),
            sums.false_GB + scores.false_GBC.sum(axis=2),
            sums.guided_GB + scores.guided_GBC.sum(axis=2),
        ), None

    # A finite start: a block may hold nothing but candidates that are left out, and -inf - -inf is NaN.
    start = _Sums(zero_GB + jnp.finfo(jnp.float32).min, zero_GB, zero_GB, zero_GB - jnp.inf, *(zero_GB,) * 3)
    sums, _ = jax.lax.scan(add, start, blocks(candidates, settings.block))
    normalizer_GB = sums.largest_GB + jnp.log(sums.total_GB)
    of_mean = ()
    if settings.mean:
        loss_GB, *of_mean = _mean_over_positives(anchors, candidates, normalizer_GB, settings)
    else:
        bias_B = candidates.bias_N.at[anchors.own_B].get(out_sharding=jax.typeof(anchors.own_B).sharding)
        loss_GB = normalizer_GB - sums.positive_GB / settings.temperature - bias_B
    loss_B: Any = sum(loss_GB)
    residuals = anchors, candidates, normalizer_GB, *of_mean
    return CrossEntropy(loss_B, *(sum_GB[-1] for sum_GB in sums[2:])), residuals


def _mean_over_positives(
    anchors: Anchors, candidates: Candidates, normalizer_GB: jax.Array, settings: _Settings
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The mean of -log of each positive's share, the mean of the negatives' shares beside each, and the positives.

    Args:
      normalizer_GB: of the negatives alone; -inf where there are none.
    """

    def add(carry: tuple, block: _Block) -> tuple[tuple, None]:
        scores, _, logit_GBC = _compared(anchors, settings, block)
        is_positive_BC = scores.own_BC | scores.positive_BC
        lead_GBC = normalizer_GB[:, :, None] - logit_GBC
        terms = (jax.nn.softplus(lead_GBC), jax.nn.sigmoid(lead_GBC), jnp.ones_like(lead_GBC))
        return tuple(sum_GB + jnp.where(is_positive_BC, x, 0).sum(axis=2) for sum_GB, x in zip(carry, terms)), None

    start = (jnp.zeros_like(normalizer_GB),) * 3
    (loss_GB, pull_GB, count_GB), _ = jax.lax.scan(add, start, blocks(candidates, settings.block))
    return loss_GB / count_GB, pull_GB / count_GB, count_GB


def _backward(settings: _Settings, residuals: tuple, gradients: CrossEntropy) -> tuple[Anchors, Candidates]:
    anchors, candidates, normalizer_GB, *of_mean = residuals
    scale_GB1 = (gradients.loss_B / settings.temperature)[None, :, None]

    def add(carry: Any, block: _Block) -> tuple[Any, Any]:
        scores, is_negative_GBC, logit_GBC = _compared(anchors, settings, block)
        relative_GBC = logit_GBC - normalizer_GB[:, :, None]
        share_GBC = jnp.exp(relative_GBC)
        if settings.mean:
            pull_GB, count_GB = of_mean
            is_positive_BC = scores.own_BC | scores.positive_BC
            of_positive_GBC = -jax.nn.sigmoid(-relative_GBC) / count_GB[:, :, None]
            gradient_GBC = jnp.where(is_positive_BC, of_positive_GBC, pull_GB[:, :, None] * share_GBC)
            gradient_GBC = scale_GB1 * jnp.where(is_positive_BC | is_negative_GBC, gradient_GBC, 0)
        else:
            shares_GBC = jnp.where(is_negative_GBC | scores.own_BC, share_GBC, 0)
            gradient_GBC = scale_GB1 * (shares_GBC - scores.own_BC)
        of_anchors, of_block = of_scores(gradient_GBC, scores.score_GBC, anchors, block[0], settings.sizes)
        return jax.tree.map(jnp.add, carry, of_anchors), of_block

    start = jax.tree.map(jnp.zeros_like, (anchors.embedding_BE, anchors.scale_BG))
    (gradient_BE, gradient_BG), of_blocks = jax.lax.scan(add, start, blocks(candidates, settings.block))
    N = len(candidates.ids_NQ)
    gradient_NE, gradient_NG = jax.tree.map(lambda x_TCY: x_TCY.reshape(-1, x_TCY.shape[2])[:N], of_blocks)
    if gradient_BG is not None:  # of their logarithms
        gradient_BG, gradient_NG = gradient_BG / anchors.scale_BG, gradient_NG / candidates.scale_NG
    none: Any = None  # nothing is trained by a bias, a place, an id, a limit or a guide
    return Anchors(gradient_BE, none, none, gradient_BG), Candidates(gradient_NE, none, none, gradient_NG)


_cross_entropy.defvjp(_forward, _backward)


def _compared(anchors: Anchors, settings: _Settings, block: _Block) -> tuple[Scores, jax.Array, jax.Array]:
    """The scores of a block, which candidates are negatives, and the logits."""
    scores = compare(anchors, *block, settings.sizes, settings.span)
    return scores, scores.negatives(), scores.score_GBC / settings.temperature + block[0].bias_N
