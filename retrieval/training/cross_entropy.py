"""Cross-entropy of a softmax over many candidates that never holds the matrix of all scores.

Scores are computed for a block of candidates at a time, in the forward pass and once more in the backward pass, which
needs no more than each row's normalizer. Memory grows with rows x block, not with rows x candidates.

Matryoshka (Kusupati et al. 2022) is the same softmax of the first dimensions of all embeddings, once for each of some
sizes. What a size adds to an inner product is the product of its own segment, so that all sizes cost the products of
one; what makes a beginning as long as 1 again is a factor of it, which is trained through outside.

More terms in the denominator are further candidates, with anchors of their own for the same rows: a query's softmax may
also hold the scores of its positive with other documents (Li et al. 2023, GTE).

Letters of shapes: B anchors, N candidates of the global batch, C candidates of a block, E embedding size, G sizes that
are compared.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from retrieval.training.candidate_blocks import Anchors, Candidates, Scores, blocks, compare, of_scores


class Term(NamedTuple):
    """Anchors and what they are compared with; `own` is how many candidates are an anchor's own, from `own_B` on."""

    anchors: Anchors
    candidates: Candidates
    own: int = 1


class CrossEntropy(NamedTuple):
    """What `cross_entropy` gives, each [B]. Only the loss is differentiable: by embeddings, factors and temperature.

    Attributes:
      positive_B, rival_B: of the last size the own positive's score (inner product x factors), and the greatest of the
        negatives', false ones too.
      known_B, false_B, guided_B: candidates of all terms that are left out, each for the first reason that holds: by
        their id, by their score of the last size, and by the guide's.
    """

    loss_B: jax.Array
    positive_B: jax.Array
    rival_B: jax.Array
    known_B: jax.Array
    false_B: jax.Array
    guided_B: jax.Array


class _Settings(NamedTuple):
    temperature: float | None  # None where it is an array
    block: int
    mean: bool
    sizes: tuple[int, ...]
    hardness: float
    own: tuple[int, ...]  # of each term
    spans: tuple[int, ...]  # candidates of a group of each term


class _Sums(NamedTuple):
    """What is added up over the blocks of all terms, for each size."""

    largest_GB: jax.Array
    total_GB: jax.Array
    positive_GB: jax.Array
    rival_GB: jax.Array
    known_GB: jax.Array
    false_GB: jax.Array
    guided_GB: jax.Array


def cross_entropy(
    terms: Sequence[Term],
    temperature: float | jax.Array,
    block: int,
    mean: bool = False,
    groups: int = 1,
    sizes: tuple[int, ...] = (),
    hardness: float = 0.0,
) -> CrossEntropy:
    """-log of a positive's share among itself and the negatives, with logits inner product / temperature + bias.

    Args:
      terms: the first has the positives; the others have further negatives of the same rows.
      mean: whether the loss is the mean over all positives of an anchor, or that of its own one alone. No positive is
        ever a negative.
      groups: the candidates are cut into so many equal parts, and an anchor sees that of its own positive alone.
      sizes: how many dimensions are compared, the first ones, ascending; () for all of them alone.
      hardness: a negative of the first term has the weight exp(hardness x score), without a gradient.
    """
    sizes = sizes or (terms[0].anchors.embedding_BE.shape[1],)
    own, spans = zip(*((term.own, len(term.candidates.ids_NQ) // groups) for term in terms))
    fixed, learned = (None, temperature) if isinstance(temperature, jax.Array) else (temperature, None)
    settings = _Settings(fixed, block, mean, sizes, hardness, own, spans)
    softmax: Any = _cross_entropy(tuple((term.anchors, term.candidates) for term in terms), learned, settings)
    return softmax  # custom_vjp's stub says `object`


_Pairs = tuple[tuple[Anchors, Candidates], ...]
_Block = tuple[Candidates, jax.Array]  # and their numbers, as `blocks` gives them


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _cross_entropy(pairs: _Pairs, learned: jax.Array | None, settings: _Settings) -> CrossEntropy:
    return _forward(pairs, learned, settings)[0]


def _forward(pairs: _Pairs, learned: jax.Array | None, settings: _Settings) -> tuple[CrossEntropy, tuple]:
    (anchors, candidates), temperature = pairs[0], _temperature(learned, settings)
    zero_GB = jnp.stack([jnp.zeros_like(anchors.own_B, jnp.float32)] * len(settings.sizes))
    # A finite start: a block may hold nothing but candidates that are left out, and -inf - -inf is NaN.
    sums = _Sums(zero_GB + jnp.finfo(jnp.float32).min, zero_GB, zero_GB, zero_GB - jnp.inf, *(zero_GB,) * 3)
    for place, (of_term, compared) in enumerate(pairs):
        add = functools.partial(_add, of_term, settings, temperature, place)
        sums, _ = jax.lax.scan(add, sums, blocks(compared, settings.block))
    normalizer_GB = sums.largest_GB + jnp.log(sums.total_GB)
    of_mean = ()
    if settings.mean:
        loss_GB, *of_mean = _mean_over_positives(anchors, candidates, normalizer_GB, settings, temperature)
    else:
        positive_GB = sums.positive_GB / temperature
        loss_GB = normalizer_GB - positive_GB - _take(candidates.bias_N, anchors.own_B)
    loss_B: Any = sum(loss_GB)
    return CrossEntropy(loss_B, *(sum_GB[-1] for sum_GB in sums[2:])), (pairs, learned, normalizer_GB, *of_mean)


def _add(
    anchors: Anchors, settings: _Settings, temperature: Any, place: int, sums: _Sums, block: _Block
) -> tuple[_Sums, None]:
    """Adds a block of the term at a place."""
    scores, is_negative_GBC, logit_GBC = _compared(anchors, settings, temperature, place, block)
    own_BC, score_GBC, counts_own = scores.own_BC, scores.score_GBC, not (settings.mean or place)
    logit_GBC = jnp.where(is_negative_GBC | own_BC if counts_own else is_negative_GBC, logit_GBC, -jnp.inf)
    new_GB = jnp.maximum(sums.largest_GB, logit_GBC.max(axis=2))
    total_GB = sums.total_GB * jnp.exp(sums.largest_GB - new_GB)
    total_GB += jnp.exp(logit_GBC - new_GB[:, :, None]).sum(axis=2)
    sums = sums._replace(
        largest_GB=new_GB,
        total_GB=total_GB,
        false_GB=sums.false_GB + scores.false_GBC.sum(axis=2),
        guided_GB=sums.guided_GB + scores.guided_GBC.sum(axis=2),
        known_GB=sums.known_GB + (0 if settings.mean and not place else scores.positive_BC.sum(axis=1)),
    )
    if place:
        return sums, None
    positive_GB = sums.positive_GB + jnp.where(own_BC, score_GBC, 0).sum(axis=2)
    no_rival_BC = own_BC | scores.positive_BC | scores.outside_BC
    rival_GB = jnp.maximum(sums.rival_GB, jnp.where(no_rival_BC, -jnp.inf, score_GBC).max(axis=2))
    return sums._replace(positive_GB=positive_GB, rival_GB=rival_GB), None


def _mean_over_positives(
    anchors: Anchors, candidates: Candidates, normalizer_GB: jax.Array, settings: _Settings, temperature: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The mean of -log of each positive's share, the mean of the negatives' shares beside each, and the positives.

    Args:
      normalizer_GB: of the negatives alone; -inf where there are none.
    """

    def add(carry: tuple, block: _Block) -> tuple[tuple, None]:
        scores, _, logit_GBC = _compared(anchors, settings, temperature, 0, block)
        is_positive_BC = scores.own_BC | scores.positive_BC
        lead_GBC = normalizer_GB[:, :, None] - logit_GBC
        terms = (jax.nn.softplus(lead_GBC), jax.nn.sigmoid(lead_GBC), jnp.ones_like(lead_GBC))
        return tuple(sum_GB + jnp.where(is_positive_BC, x, 0).sum(axis=2) for sum_GB, x in zip(carry, terms)), None

    start = (jnp.zeros_like(normalizer_GB),) * 3
    (loss_GB, pull_GB, count_GB), _ = jax.lax.scan(add, start, blocks(candidates, settings.block))
    return loss_GB / count_GB, pull_GB / count_GB, count_GB


def _backward(settings: _Settings, residuals: tuple, gradients: CrossEntropy) -> tuple[_Pairs, jax.Array | None]:
    pairs, learned, normalizer_GB, *of_mean = residuals
    temperature, of_loss_B = _temperature(learned, settings), gradients[0]
    scale_GB1 = (of_loss_B / temperature)[None, :, None]
    of_pairs, sums = zip(
        *(
            _gradients(anchors, candidates, settings, temperature, place, normalizer_GB, scale_GB1, *of_mean)
            for place, (anchors, candidates) in enumerate(pairs)
        )
    )
    return of_pairs, None if learned is None else -sum(sums) / learned


def _gradients(
    anchors: Anchors,
    candidates: Candidates,
    settings: _Settings,
    temperature: Any,
    place: int,
    normalizer_GB: jax.Array,
    scale_GB1: jax.Array,
    pull_GB: Any = None,
    count_GB: Any = None,
) -> tuple[tuple[Anchors, Candidates], Any]:
    """Of the anchors and candidates of the term at a place, and the sum of the scores times their own gradients."""

    def add(carry: Any, block: _Block) -> tuple[Any, Any]:
        scores, is_negative_GBC, logit_GBC = _compared(anchors, settings, temperature, place, block)
        relative_GBC = logit_GBC - normalizer_GB[:, :, None]
        share_GBC = jnp.exp(relative_GBC)
        if settings.mean:
            is_positive_BC = (scores.own_BC | scores.positive_BC) & (not place)
            of_positive_GBC = -jax.nn.sigmoid(-relative_GBC) / count_GB[:, :, None]
            gradient_GBC = jnp.where(is_positive_BC, of_positive_GBC, pull_GB[:, :, None] * share_GBC)
            gradient_GBC = scale_GB1 * jnp.where(is_positive_BC | is_negative_GBC, gradient_GBC, 0)
        elif place:
            gradient_GBC = scale_GB1 * jnp.where(is_negative_GBC, share_GBC, 0)
        else:
            shares_GBC = jnp.where(is_negative_GBC | scores.own_BC, share_GBC, 0)
            gradient_GBC = scale_GB1 * (shares_GBC - scores.own_BC)
        of_anchors, of_block = of_scores(gradient_GBC, scores.score_GBC, anchors, block[0], settings.sizes)
        of_learned = None if settings.temperature else (gradient_GBC * scores.score_GBC).sum()
        return jax.tree.map(jnp.add, carry, (of_anchors, of_learned)), of_block

    start = jax.tree.map(jnp.zeros_like, (anchors.embedding_BE, anchors.scale_BG))
    start = start, None if settings.temperature else jnp.zeros(())
    ((gradient_BE, gradient_BG), of_learned), of_blocks = jax.lax.scan(add, start, blocks(candidates, settings.block))
    N = len(candidates.ids_NQ)
    gradient_NE, gradient_NG = jax.tree.map(lambda x_TCY: x_TCY.reshape(-1, x_TCY.shape[2])[:N], of_blocks)
    if gradient_BG is not None:  # of their logarithms
        gradient_BG, gradient_NG = gradient_BG / anchors.scale_BG, gradient_NG / candidates.scale_NG
    none: Any = None  # nothing is trained by a bias, a place, an id, a limit or a guide
    return (Anchors(gradient_BE, none, none, gradient_BG), Candidates(gradient_NE, none, none, gradient_NG)), of_learned


_cross_entropy.defvjp(_forward, _backward)


def _temperature(learned: jax.Array | None, settings: _Settings) -> Any:
    return settings.temperature if learned is None else learned


def _compared(
    anchors: Anchors, settings: _Settings, temperature: Any, place: int, block: _Block
) -> tuple[Scores, jax.Array, jax.Array]:
    """The scores of a block of the term at a place, which candidates are negatives, and the logits."""
    scores = compare(anchors, *block, settings.sizes, settings.spans[place], settings.own[place])
    is_negative_GBC, logit_GBC = scores.negatives(), scores.score_GBC / temperature + block[0].bias_N
    if settings.hardness and not place:
        logit_GBC += jnp.where(is_negative_GBC, settings.hardness * scores.score_GBC, 0)
    return scores, is_negative_GBC, logit_GBC


def _take(value_N: jax.Array, index_B: jax.Array) -> jax.Array:
    return value_N.at[index_B].get(out_sharding=jax.typeof(index_B).sharding)
