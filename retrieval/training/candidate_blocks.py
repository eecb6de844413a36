"""What a softmax over many candidates compares, a block of candidates at a time: scores, and whom they leave out.

Letters of shapes: B anchors, N candidates of the global batch, T blocks, C candidates of a block, E embedding size,
G sizes that are compared, H size of a guide's embeddings, P ids of an anchor, Q ids of a candidate.
"""

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
      guide_NH: a guide's embeddings, if there is one.
    """

    embedding_NE: jax.Array
    bias_N: jax.Array
    ids_NQ: jax.Array
    scale_NG: jax.Array | None = None
    guide_NH: jax.Array | None = None


class Anchors(NamedTuple):
    """The rows of this device; `scale_BG` and `guide_BH` are as of `Candidates`.

    Attributes:
      own_B: the place of each anchor's own positive among the candidates.
      limit_BG: a negative with a greater score is taken for a false one, and left out; None for no limit.
      guide_limit_B: the same of the guide's scores.
    """

    embedding_BE: jax.Array
    own_B: jax.Array
    ids_BP: jax.Array
    scale_BG: jax.Array | None = None
    limit_BG: jax.Array | None = None
    guide_BH: jax.Array | None = None
    guide_limit_B: jax.Array | None = None


class Scores(NamedTuple):
    """Scores of a block, and what each candidate is to an anchor: one of these at most, or else a negative.

    Attributes:
      own_BC: the anchor's own.
      positive_BC: another positive, by id.
      outside_BC: padding, or of another group.
      false_GBC: a false negative by its score.
      guided_GBC: a false negative by the guide's score alone.
    """

    score_GBC: jax.Array
    own_BC: jax.Array
    positive_BC: jax.Array
    outside_BC: jax.Array
    false_GBC: jax.Array
    guided_GBC: jax.Array

    def negatives(self) -> jax.Array:
        """Which candidates are negatives, [G, B, C]."""
        return ~(self.false_GBC | self.guided_GBC | self.own_BC | self.positive_BC | self.outside_BC)


def inverse_lengths(embedding_XE: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """1 / the length of the first dimensions of a vector, for each of the sizes, [X, G]; of zeros 10^12."""
    squares_XG = jnp.stack([jnp.square(embedding_XE[:, a:b]).sum(axis=1) for a, b in segments(sizes)], axis=1)
    return 1 / jnp.sqrt(jnp.maximum(jnp.cumsum(squares_XG, axis=1), 1e-24))


def segments(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """The dimensions that each size adds, from and to."""
    return list(zip((0, *sizes), sizes))


def blocks(candidates: Candidates, block: int) -> tuple[Candidates, jax.Array]:
    """Candidates in blocks [T, C, ...], and the number of each; the last block may end with zeros, of number -1."""
    N = len(candidates.ids_NQ)
    C = min(block, N)
    padding = -N % C

    def cut(x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, C, *x.shape[1:])

    return jax.tree.map(cut, candidates), cut(jnp.arange(1, N + 1)) - 1


def compare(anchors: Anchors, block: Candidates, number_C: jax.Array, sizes: tuple[int, ...], span: int) -> Scores:
    """The scores of a block, and what its candidates are.

    Args:
      number_C: the number of each candidate, as `blocks` gives it.
      sizes: how many dimensions are compared, ascending.
      span: candidates of a group.
    """
    parts = [(anchors.embedding_BE[:, a:b], block.embedding_NE[:, a:b]) for a, b in segments(sizes)]
    products = [product("be,ce->bc", anchor_BS, block_CS) for anchor_BS, block_CS in parts]
    score_GBC = jnp.stack(list(itertools.accumulate(products)))
    if anchors.scale_BG is not None:
        score_GBC *= factors(anchors, block)
    own_BC = anchors.own_B[:, None] == number_C
    if block.ids_NQ.shape[1] == 1:
        is_positive_BC = contain(anchors.ids_BP, block.ids_NQ[:, 0])
    else:
        is_positive_BC = contain(block.ids_NQ, anchors.ids_BP[:, 0]).T
    # The number of padding is -1, and so is that of its group.
    outside_BC = (anchors.own_B // span)[:, None] != number_C // span
    rest_BC = ~own_BC & ~outside_BC & ~is_positive_BC
    false_GBC = guided_GBC = jnp.zeros_like(score_GBC, bool)
    if anchors.limit_BG is not None:
        false_GBC = rest_BC & (score_GBC > anchors.limit_BG.T[:, :, None])
    if anchors.guide_limit_B is not None:
        guided_BC = product("bh,ch->bc", anchors.guide_BH, block.guide_NH) > anchors.guide_limit_B[:, None]
        guided_GBC = rest_BC & guided_BC & ~false_GBC
    positive_BC = is_positive_BC & ~own_BC & ~outside_BC
    return Scores(score_GBC, own_BC, positive_BC, outside_BC, false_GBC, guided_GBC)


def factors(anchors: Anchors, block: Candidates) -> Any:
    """What makes scores of inner products, [G, B, C]."""
    scale_BG: Any = anchors.scale_BG
    scale_CG: Any = block.scale_NG
    return scale_BG.T[:, :, None] * scale_CG.T[:, None]


def of_scores(
    gradient_GBC: jax.Array, score_GBC: jax.Array, anchors: Anchors, block: Candidates, sizes: tuple[int, ...]
) -> tuple:
    """Gradients of anchors and of a block, each by embeddings and logarithms of factors, from those of the scores."""
    of_scales = None, None
    if anchors.scale_BG is not None:
        of_logarithm_GBC = gradient_GBC * score_GBC
        of_scales = of_logarithm_GBC.sum(axis=2).T, of_logarithm_GBC.sum(axis=1).T
        gradient_GBC *= factors(anchors, block)
    # A segment is a part of its own size and of all later ones.
    sums_BC = list(itertools.accumulate(gradient_GBC[::-1]))[::-1]
    of_anchors, of_block = [], []
    for (a, b), sum_BC in zip(segments(sizes), sums_BC):
        of_anchors.append(product("bc,ce->be", sum_BC, block.embedding_NE[:, a:b]))
        of_block.append(product("bc,be->ce", sum_BC, anchors.embedding_BE[:, a:b], summed()))
    return (jnp.concatenate(of_anchors, axis=1), of_scales[0]), (jnp.concatenate(of_block, axis=1), of_scales[1])


def contain(list_XP: jax.Array, id_Y: jax.Array) -> jax.Array:
    """Whether a list has an id, [X, Y]; some places of the lists at a time, for a query may have 1,000 positives."""
    more = -list_XP.shape[1] % min(_IDS, list_XP.shape[1])
    full_XP = jnp.concatenate([list_XP, jnp.repeat(list_XP[:, :1], more, axis=1)], axis=1)
    parts_TXI = jnp.stack(jnp.split(full_XP, max(1, full_XP.shape[1] // _IDS), axis=1))

    def contain(part_XI: jax.Array) -> jax.Array:
        return (part_XI[:, None] == id_Y[:, None]).any(axis=2)

    first, rest = contain(parts_TXI[0]), parts_TXI[1:]
    return jax.lax.scan(lambda contained_XY, part: (contained_XY | contain(part), None), first, rest)[0]


def product(equation: str, a: Any, b: Any, out_sharding: P | None = None) -> jax.Array:
    """A product of two matrices of float32."""
    # The default precision on an accelerator would round the embeddings to bfloat16 or TF32.
    return jnp.einsum(equation, a, b, precision=jax.lax.Precision.HIGHEST, out_sharding=out_sharding)


def summed() -> P | None:
    """The sharding of a sum over all devices' rows."""
    return None if jax.sharding.get_abstract_mesh().empty else P()
