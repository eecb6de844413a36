"""In-batch softmax: the positive against every document of the global batch.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then the hard negatives), E
embedding size, P known positives of a query.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from retrieval.config.fields import declared
from retrieval.errors import UserError, divisors, unknown_name
from retrieval.runtime.arrays import on_every_device
from retrieval.training.cross_entropy import Anchors, Candidates, cross_entropy, inverse_lengths
from retrieval.training.loss_kind import EMBEDDINGS, LOSSES, TEMPERATURE, Batch, Loss, Metrics, Options

# What the loss makes of a query's other positives in the batch: no negatives, or positives beside its own.
OTHER_POSITIVES = ("mask", "mean")
# The config can also leave them what they are to a loss that does not know of them.
PUSHED = "negatives"
_OTHERS = "train.other_positives"
MATRYOSHKA, _WEIGHTS = "train.matryoshka", "train.matryoshka_weights"
_MARGIN = "train.false_margin"


def in_batch_softmax(
    query_BE: jax.Array,
    document_BKE: jax.Array,
    document_ids_BK: jax.Array,
    log_q_BK: jax.Array | None,
    *,
    temperature: float = 1.0,
    symmetric: bool = False,
    positive_ids_BP: jax.Array | None = None,
    other_positives: str = "mask",
    groups: int = 1,
    matryoshka: tuple[int, ...] = (),
    matryoshka_weights: tuple[float, ...] = (),
    false_negatives: str = "",
    false_margin: float = 0.1,
    block: int = 512,
) -> tuple[jax.Array, Metrics]:
    """Sampled softmax over all documents of the global batch (Chang et al. 2020, section 2).

    The logit of a document is score / temperature - log Q(document), the positive's too (Bengio & Senecal 2008; for
    in-batch candidates Yi et al. 2019): Q is the chance of being drawn, so a document is not pushed away for being
    drawn often. No positive of a query is its negative, by id, in whatever row and column it is: neither a copy of its
    own one, nor another that is known.

    Args:
      document_BKE: the positive is `document_BKE[:, 0]`.
      document_ids_BK: equal for copies of a document, in whatever column.
      log_q_BK: log Q, up to a constant; None for no correction.
      symmetric: whether to average with the softmax of each positive over the batch's queries. There the other queries
        that it is a positive of are no negatives, and nothing is corrected.
      positive_ids_BP: ids of all positives of a query that are known, its own among them; None for its own alone.
        An id may be there more than once, to fill a row up.
      other_positives: 'mask' leaves them out; with 'mean' the loss of a query is the mean over its positives in the
        batch, of each among itself and the negatives.
      groups: the batch is cut into so many parts of examples that follow one another, and an example is compared with
        the documents of its part alone. The mean loss and its gradient are those of as many batches in an accumulated
        update (ProQA, Xiong et al. 2020, section 4.1: 8 of 80).
      matryoshka: sizes, ascending to E. The loss is the sum of those of the first so many dimensions of all embeddings,
        of length 1 each (Kusupati et al. 2022): scores are cosines, and 'recall@1' is of all E dimensions.
      matryoshka_weights: of these losses; () for 1 each.
      false_negatives: a negative whose score is greater than the own positive's + margin is left out, as a false one:
        'absolute' or, with a margin in units of the size of the positive's score, 'relative'; '' for none. Each size
        of `matryoshka` has its own, and so has each direction.
      false_margin: may be negative, and then leaves out what is close to the positive too.
      block: documents that are compared at a time; it changes memory and time, not the result.

    Returns:
      The loss [B], and 'recall@1' [B]: 1 where the own positive's score (not corrected) is greater than that of every
      negative, false ones too, else 0; a tie is a miss. With `false_negatives` also 'false_negatives' [B]: how many of
      a query's documents are left out, of all dimensions.

    Raises:
      UserError: the temperature or the block is not positive, `other_positives` is unknown, the groups do not divide
        the batch, or the sizes do not ascend to that of the embeddings.
    """
    if not temperature > 0:
        raise UserError(f"temperature {temperature}: must be greater than 0")
    if other_positives not in OTHER_POSITIVES:
        raise unknown_name("other_positives", other_positives, OTHER_POSITIVES)
    if block < 1:
        raise UserError(f"loss block {block}: must be at least 1")
    B, K, E = document_BKE.shape
    if B % groups:
        raise UserError(
            f"config.train.groups={groups} do not divide a batch of {B} examples: take {divisors(groups, B)}"
        )
    check_sizes(matryoshka, E)
    query_BE, document_BKE = query_BE.astype(jnp.float32), document_BKE.astype(jnp.float32)
    ids_B1 = document_ids_BK[:, :1]
    known_BP = ids_B1 if positive_ids_BP is None else positive_ids_BP
    options = (temperature, block, other_positives == "mean", groups, matryoshka, matryoshka_weights)
    bias_BK = jnp.zeros_like(document_ids_BK, jnp.float32) if log_q_BK is None else -jnp.asarray(log_q_BK, jnp.float32)
    document_NE = document_BKE.reshape(B * K, E)
    query_BG, document_NG = (inverse_lengths(x, matryoshka) if matryoshka else None for x in (query_BE, document_NE))
    documents = Candidates(document_NE, bias_BK.reshape(B * K), document_ids_BK.reshape(B * K)[:, None], document_NG)
    limits = _limits(query_BE, document_BKE[:, 0], matryoshka, false_negatives, false_margin)
    queries = Anchors(query_BE, _numbers(ids_B1[:, 0], K), known_BP, query_BG, limits)
    loss_B, positive_B, rival_B, false_B = cross_entropy(queries, on_every_device(documents), *options)
    if symmetric:
        positive_BE = document_BKE[:, 0]
        positive_BG = inverse_lengths(positive_BE, matryoshka) if matryoshka else None
        positives = Anchors(positive_BE, _numbers(ids_B1[:, 0], 1), ids_B1, positive_BG, limits)
        rivals = Candidates(query_BE, jnp.zeros_like(ids_B1[:, 0], jnp.float32), known_BP, query_BG)
        loss_B = (loss_B + cross_entropy(positives, on_every_device(rivals), *options)[0]) / 2
    metrics = {"recall@1": (positive_B > rival_B).astype(jnp.float32)}
    return loss_B, metrics | ({"false_negatives": false_B} if false_negatives else {})


def _limits(
    query_BE: jax.Array, positive_BE: jax.Array, sizes: tuple[int, ...], kind: str, margin: float
) -> jax.Array | None:
    """The greatest scores of negatives that are taken for true ones, for each size [B, G]; without a gradient."""
    if not kind:
        return None
    product_BE = jnp.cumsum(jax.lax.stop_gradient(query_BE * positive_BE), axis=1)
    score_BG = product_BE[:, np.array(sizes or query_BE.shape[1:]) - 1]
    if sizes:
        lengths = (inverse_lengths(jax.lax.stop_gradient(x), sizes) for x in (query_BE, positive_BE))
        score_BG *= math.prod(lengths)
    return score_BG + margin * (jnp.abs(score_BG) if kind == "relative" else 1)


def check_sizes(sizes: tuple[int, ...], size: int) -> None:
    """Checks that Matryoshka's sizes, if any, ascend to that of the embeddings.

    Raises:
      UserError: they do not.
    """
    if sizes and sizes[-1] > size:
        raise UserError(f"config.{MATRYOSHKA}={sizes}: embeddings have {size} dimensions: take sizes of at most {size}")
    if sizes and sizes[-1] < size:
        raise UserError(
            f"config.{MATRYOSHKA}={sizes}: embeddings have {size} dimensions, the last of which nothing would train: "
            f"add {size}, or set config.model.truncate_dim={sizes[-1]}"
        )
    if any(a >= b for a, b in zip((0, *sizes), sizes)):
        raise UserError(f"config.{MATRYOSHKA}={sizes}: sizes must ascend, from 1 on")


def _check_options(options: Options) -> None:
    sizes, weights = options[MATRYOSHKA], options[_WEIGHTS]
    if weights and len(weights) != len(sizes):
        raise UserError(
            f"config.{_WEIGHTS}={weights} are weights of the {len(sizes)} sizes of config.{MATRYOSHKA}={sizes}: give "
            "as many, or () for 1 each"
        )
    if options[_MARGIN] != declared()[_MARGIN].default and not options["train.false_negatives"]:
        raise UserError(
            f"config.{_MARGIN}={options[_MARGIN]} is the margin of config.train.false_negatives, which is off: set "
            "that to absolute or relative"
        )


def _numbers(ids_B: jax.Array, K: int) -> jax.Array:
    """The place of each example's first document among the B * K of the batch."""
    return jnp.zeros_like(ids_B) + jnp.arange(0, len(ids_B) * K, K, dtype=ids_B.dtype)


def of_batch(
    query_BE: jax.Array,
    document_BKE: jax.Array,
    batch: Batch,
    *,
    temperature: float,
    symmetric: bool,
    other_positives: str,
    log_q: bool,
    groups: int,
    matryoshka: tuple[int, ...],
    matryoshka_weights: tuple[float, ...],
    false_negatives: str,
    false_margin: float,
) -> tuple[jax.Array, Metrics]:
    """`in_batch_softmax` of a batch, with the fields of the config."""
    return in_batch_softmax(
        query_BE,
        document_BKE,
        batch["document_id"],
        batch["log_q"] if log_q else None,
        temperature=temperature,
        symmetric=symmetric,
        positive_ids_BP=batch.get("positive_ids"),
        other_positives="mask" if other_positives == PUSHED else other_positives,
        groups=groups,
        matryoshka=tuple(matryoshka),
        matryoshka_weights=tuple(matryoshka_weights),
        false_negatives=false_negatives,
        false_margin=false_margin,
    )


LOSSES.register(
    "in_batch_softmax",
    Loss(
        of_batch,
        EMBEDDINGS,
        "softmax of the positive among all documents of the batch",
        options=(
            TEMPERATURE,
            "train.symmetric",
            _OTHERS,
            "train.log_q",
            "train.groups",
            MATRYOSHKA,
            _WEIGHTS,
            "train.false_negatives",
            _MARGIN,
        ),
        takes_positives=lambda options: options[_OTHERS] != PUSHED,
        counts_copies=lambda options: _OTHERS if options[_OTHERS] == "mean" else "",
        neutral={_OTHERS: (PUSHED,), "train.log_q": (False,)},
        check=_check_options,
    ),
)
