"""In-batch softmax: the positive against every document of the global batch.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then the hard negatives), E
embedding size, P known positives of a query, H size of a guide's embeddings.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from retrieval.config.tree import declared
from retrieval.errors import UserError, divisors, unknown_name
from retrieval.runtime.arrays import on_every_device
from retrieval.training.candidate_blocks import Anchors, Candidates, inverse_lengths
from retrieval.training.cross_entropy import Hardness, Term, cross_entropy
from retrieval.training.loss_kind import EMBEDDINGS, LOSSES, TEMPERATURE, Batch, Loss, Metrics, Options
from retrieval.training.matryoshka import SIZES, WEIGHTS, check_sizes, check_weights

# What the loss makes of a query's other positives in the batch: no negatives, or positives beside its own.
OTHER_POSITIVES = ("mask", "mean")
# The config can also leave them what they are to a loss that does not know of them.
PUSHED = "negatives"
_OTHERS = "train.other_positives"
_RULE, _MARGIN = "train.false_negatives", "train.false_margin"
_GUIDE, _GUIDE_RULE, _GUIDE_MARGIN = "train.guide", "train.guide_rule", "train.guide_margin"
_HARDNESS, _HARDNESS_OF = "train.hardness", "train.hardness_of"
_TERMS, _SYMMETRIC, _LOG_Q = "train.terms", "train.symmetric", "train.log_q"

# What the softmax of a query may hold besides the scores of documents for it.
TERMS = ("query_query", "document_document", "document_query")


def in_batch_softmax(
    query_BE: jax.Array,
    document_BKE: jax.Array,
    document_ids_BK: jax.Array,
    log_q_BK: jax.Array | None,
    *,
    temperature: float | jax.Array = 1.0,
    symmetric: bool = False,
    positive_ids_BP: jax.Array | None = None,
    other_positives: str = "mask",
    groups: int = 1,
    matryoshka: tuple[int, ...] = (),
    matryoshka_weights: tuple[float, ...] = (),
    false_negatives: str = "",
    false_margin: float = 0.1,
    guide_BTH: jax.Array | None = None,
    guide_rule: str = "absolute",
    guide_margin: float = 0.0,
    terms: Sequence[str] = (),
    hardness: float = 0.0,
    hardness_of: str = "all",
    block: int = 512,
) -> tuple[jax.Array, Metrics]:
    """Sampled softmax over all documents of the global batch (Chang et al. 2020, section 2).

    The logit of a document is score / temperature - log Q(document), the positive's too (Bengio & Senecal 2008; for
    in-batch candidates Yi et al. 2019): Q is the chance of being drawn, so a document is not pushed away for being
    drawn often. No positive of a query is its negative, by id, in whatever row and column it is: neither a copy of its
    own one, nor another that is known.

    Args:
      temperature: a number, or an array of one that is learned.
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
      guide_BTH: embeddings of the query and its documents, T = 1 + K, by another model that stays as it is. A negative
        whose score there is greater than the own positive's + `guide_margin`, 'absolute' or 'relative' as `guide_rule`
        says, is left out (Solatorio 2024, GISTEmbed). All sizes and both directions have these scores.
      terms: of `TERMS`, negatives that a query's softmax has besides: `query_query` its scores with the other queries,
        `document_document` those of its positive with the documents of other examples, and `document_query` those of
        its positive with the other queries (Li et al. 2023, GTE). Every mask is theirs too: a query is left out whose
        positive is one of this query's, and one that the positive answers. Nothing of them is corrected.
      hardness: the weight of a query's negative is exp(hardness x its score), without a gradient through that (Lan et
        al. 2025, LLaVE: 9); `hardness_of` says of which documents: 'all', or its own hard negatives ('hard',
        EmbeddingGemma: 5). Other terms and the other direction have none.
      block: documents that are compared at a time; it changes memory and time, not the result.

    Returns:
      The loss [B], and 'recall@1' [B]: 1 where the own positive's score (not corrected) is greater than that of every
      negative, false ones too, else 0; a tie is a miss. Also how many candidates of a query's softmax are left out [B],
      each for the first reason that holds: 'masked_ids', another known positive, where these are masked;
      'masked_margin' with `false_negatives`, of all dimensions; and 'masked_guide' with a guide.

    Raises:
      UserError: the temperature or the block is not positive, `other_positives` or a term is unknown, the groups do
        not divide the batch, or the sizes do not ascend to that of the embeddings.
    """
    if not isinstance(temperature, jax.Array) and not temperature > 0:
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
    if not are_terms(terms):
        raise UserError(f"terms {terms}: some of {', '.join(TERMS)} are needed")
    check_sizes(matryoshka, E)
    query_BE, document_BKE = query_BE.astype(jnp.float32), document_BKE.astype(jnp.float32)
    ids_B1 = document_ids_BK[:, :1]
    known_BP = ids_B1 if positive_ids_BP is None else positive_ids_BP
    options = (temperature, block, other_positives == "mean", groups, matryoshka, matryoshka_weights)
    bias_BK = jnp.zeros_like(document_ids_BK, jnp.float32) if log_q_BK is None else -jnp.asarray(log_q_BK, jnp.float32)
    guide_BH, guide_BKH = (None, None) if guide_BTH is None else (guide_BTH[:, 0], guide_BTH[:, 1:])
    queries = _Texts.of(query_BE, matryoshka, guide_BH)
    of_guide = None if guide_BKH is None else guide_BKH.reshape(B * K, -1)
    documents = _Texts.of(document_BKE.reshape(B * K, E), matryoshka, of_guide)
    positives = _Texts.of(document_BKE[:, 0], matryoshka, None if guide_BKH is None else guide_BKH[:, 0])
    limits_BG = _limits(query_BE, document_BKE[:, 0], matryoshka, false_negatives, false_margin)
    of_guide_BG = None if guide_BTH is None else _limits(guide_BTH[:, 0], guide_BTH[:, 1], (), guide_rule, guide_margin)
    limits = limits_BG, None if of_guide_BG is None else of_guide_BG[:, 0]
    numbers_B, number_of_K = _numbers(ids_B1[:, 0], 1), _numbers(ids_B1[:, 0], K)
    no_bias_B = jnp.zeros_like(ids_B1[:, 0], jnp.float32)
    rivals = on_every_device(documents.candidates(bias_BK.reshape(B * K), document_ids_BK.reshape(B * K)[:, None]))
    compared = [Term(queries.anchors(number_of_K, known_BP, *limits), rivals)]
    if symmetric or terms:
        asked = on_every_device(queries.candidates(no_bias_B, known_BP))
        backward = Term(positives.anchors(numbers_B, ids_B1, *limits), asked)
    if "query_query" in terms:
        of_positives = asked._replace(ids_NQ=on_every_device(ids_B1))
        compared.append(Term(queries.anchors(numbers_B, known_BP, *limits), of_positives))
    if "document_document" in terms:
        plain = rivals._replace(bias_N=jnp.zeros_like(rivals.bias_N))
        compared.append(Term(positives.anchors(number_of_K, known_BP, *limits), plain, own=K))
    if "document_query" in terms:
        compared.append(backward)
    weights = Hardness(hardness, K if hardness_of == "hard" else 0) if hardness else None
    found = cross_entropy(compared, *options, hardness=weights)
    loss_B = found.loss_B
    if symmetric:
        loss_B = (loss_B + cross_entropy([backward], *options).loss_B) / 2
    metrics = {"recall@1": (found.positive_B > found.rival_B).astype(jnp.float32)}
    counts = {"ids": found.known_B} if other_positives == "mask" else {}
    counts |= {"margin": found.false_B} if false_negatives else {}
    counts |= {"guide": found.guided_B} if guide_BTH is not None else {}
    return loss_B, metrics | {f"masked_{reason}": count_B for reason, count_B in counts.items()}


class _Texts(NamedTuple):
    """Queries or documents: embeddings [X, E], factors of Matryoshka's sizes, and embeddings of a guide."""

    embedding_XE: jax.Array
    scale_XG: jax.Array | None
    guide_XH: jax.Array | None

    @staticmethod
    def of(embedding_XE: jax.Array, sizes: tuple[int, ...], guide_XH: jax.Array | None) -> "_Texts":
        """With the factors of these sizes."""
        return _Texts(embedding_XE, inverse_lengths(embedding_XE, sizes) if sizes else None, guide_XH)

    def anchors(
        self, own_X: jax.Array, ids_XP: jax.Array, limit_XG: jax.Array | None, guide_limit_X: jax.Array | None
    ) -> Anchors:
        """As those that choose."""
        return Anchors(self.embedding_XE, own_X, ids_XP, self.scale_XG, limit_XG, self.guide_XH, guide_limit_X)

    def candidates(self, bias_X: jax.Array, ids_XQ: jax.Array) -> Candidates:
        """As those that are chosen among."""
        return Candidates(self.embedding_XE, bias_X, ids_XQ, self.scale_XG, self.guide_XH)


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


def are_terms(value: Any) -> bool:
    """Whether a value is a tuple of `TERMS`."""
    return isinstance(value, tuple | list) and all(term in TERMS for term in value)


def _check_options(options: Options) -> None:
    check_weights(tuple(options[SIZES]), tuple(options[WEIGHTS]))
    if options[_MARGIN] != declared()[_MARGIN].default and not options[_RULE]:
        raise UserError(
            f"config.{_MARGIN}={options[_MARGIN]} is the margin of config.{_RULE}, which is off: set that to absolute "
            "or relative"
        )
    for field in (_GUIDE_RULE, _GUIDE_MARGIN):
        if options[field] != declared()[field].default and not options[_GUIDE]:
            raise UserError(
                f"config.{field}={options[field]} is of the mask of config.{_GUIDE}, which names no model: name one, "
                "such as hf:sentence-transformers/all-MiniLM-L6-v2"
            )
    if options[_HARDNESS_OF] != declared()[_HARDNESS_OF].default and not options[_HARDNESS]:
        raise UserError(
            f"config.{_HARDNESS_OF}={options[_HARDNESS_OF]} says whose weights config.{_HARDNESS} sets, which is 0: "
            "set that to more, such as 5"
        )
    if terms := tuple(options[_TERMS]):
        if options[_SYMMETRIC]:
            raise UserError(
                f"config.{_TERMS}={terms} puts more scores into one softmax, and config.{_SYMMETRIC}=True takes the "
                "mean of two: set one of them back"
            )
        if options[_LOG_Q]:
            raise UserError(
                f"config.{_TERMS}={terms} compares scores of documents, which config.{_LOG_Q}=True corrects, with "
                f"others, which nothing corrects: set config.{_LOG_Q}=False"
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
    guide: str,
    guide_rule: str,
    guide_margin: float,
    terms: tuple[str, ...],
    hardness: float,
    hardness_of: str,
) -> tuple[jax.Array, Metrics]:
    """`in_batch_softmax` of a batch, with the fields of the config."""
    return in_batch_softmax(
        query_BE,
        document_BKE,
        batch["document_id"],
        batch["log_q"] if log_q else None,
        temperature=1 / batch["scale"] if "scale" in batch else temperature,
        symmetric=symmetric,
        positive_ids_BP=batch.get("positive_ids"),
        other_positives="mask" if other_positives == PUSHED else other_positives,
        groups=groups,
        matryoshka=tuple(matryoshka),
        matryoshka_weights=tuple(matryoshka_weights),
        false_negatives=false_negatives,
        false_margin=false_margin,
        guide_BTH=batch["guide"] if guide else None,
        guide_rule=guide_rule,
        guide_margin=guide_margin,
        terms=terms,
        hardness=hardness,
        hardness_of=hardness_of,
    )


LOSSES.register(
    "in_batch_softmax",
    Loss(
        of_batch,
        EMBEDDINGS,
        "softmax of the positive among all documents of the batch",
        options=(
            TEMPERATURE,
            _SYMMETRIC,
            _OTHERS,
            _LOG_Q,
            "train.groups",
            SIZES,
            WEIGHTS,
            _RULE,
            _MARGIN,
            _GUIDE,
            _GUIDE_RULE,
            _GUIDE_MARGIN,
            _TERMS,
            _HARDNESS,
            _HARDNESS_OF,
        ),
        takes_positives=lambda options: options[_OTHERS] != PUSHED,
        counts_copies=lambda options: _OTHERS if options[_OTHERS] == "mean" else "",
        guide=lambda options: options[_GUIDE],
        learns_scale=True,
        neutral={_OTHERS: (PUSHED,), _LOG_Q: (False,)},
        check=_check_options,
    ),
)
