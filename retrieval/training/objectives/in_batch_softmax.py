"""In-batch softmax: the positive against every document of the global batch.

Letters of shapes: B examples of the global batch, K documents of each (the positive, then the hard negatives), E
embedding size, P known positives of a query, H size of a guide's embeddings.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from retrieval.common.errors import UserError, divisors
from retrieval.common.runtime.arrays import on_every_device
from retrieval.training.candidate_blocks import Anchors, Candidates, inverse_lengths
from retrieval.training.cross_entropy import cross_entropy
from retrieval.training.loss_kind import AS_NEGATIVES, EMBEDDINGS, LOSSES, Batch, Loss, Metrics
from retrieval.training.matryoshka import check_sizes


@dataclasses.dataclass(frozen=True)
class InBatchSoftmax(Loss):
    """Softmax of the positive among all documents of the batch.

        loss = -log(exp(l_p) / (exp(l_p) + sum over negatives n of exp(l_n)))
        l_d  = inner product of query and document d / temperature - log Q(d)

    The contrastive loss of most embedders: InfoNCE, sampled softmax, NT-Xent; sentence-transformers'
    MultipleNegativesRankingLoss, whose scale 20 is the temperature 0.05, and with `symmetric` its symmetric form. With
    a guide it is GISTEmbedLoss (Solatorio 2024), and with train.chunk_size the cached form of either (GradCache). The
    first to try for pairs of a query and its positive: every other document of the batch is a negative, and hard
    negatives join them. Larger batches are better; cosines need a temperature of 0.01 to 0.05.

    Q is the probability that a batch draws a document, so one is not pushed away for being drawn often (Bengio &
    Senecal 2008; Yi et al. 2019; Chang et al. 2020, section 2). No positive of a query is its negative, by id, in
    whatever row and column it is: neither a copy of its own one, nor another that is known.

    Attributes:
      symmetric: averages with the softmax of each positive over the batch's queries. There the other queries that it is
        a positive of are no negatives, and nothing is corrected.
      other_positives: 'mask' leaves them out; with 'mean' the loss of a query is the mean over its positives in the
        batch, of each among itself and the negatives; 'negatives' knows a query's own one alone.
      groups: the batch is cut into so many parts of examples that follow one another, and an example is compared with
        the documents of its part alone. The mean loss and its gradient are those of as many batches in an accumulated
        update (ProQA, Xiong et al. 2020, section 4.1: 8 of 80).
      matryoshka: sizes, ascending to E. The loss is the sum of those of the first so many dimensions of all embeddings,
        of length 1 each (Kusupati et al. 2022): scores are cosines, and 'recall@1' is of all E dimensions.
      false_negatives: a negative whose score is greater than the own positive's + margin is left out, as a false one:
        'absolute' or, with a margin in units of the size of the positive's score, 'relative'; '' for none. Each size
        of `matryoshka` has its own, and so has each direction.
      false_margin: may be negative, and then leaves out what is close to the positive too.
      guide: another model that stays as it is. A negative whose score there is greater than the own positive's +
        `guide_margin` is left out. All sizes and both directions have these scores.
    """

    inputs = EMBEDDINGS
    neutral = {"train.other_positives": (AS_NEGATIVES,), "train.log_q": (False,)}
    block: ClassVar[int] = 512  # documents that are compared at a time: it changes memory and time, not the result

    temperature: float = 1.0
    symmetric: bool = False
    other_positives: str = "mask"
    log_q: bool = True
    groups: int = 1
    matryoshka: tuple[int, ...] = ()
    false_negatives: str = ""
    false_margin: float = 0.1
    guide: str = ""
    guide_margin: float = 0.0

    def check_batch(self, batch_size: int, negatives: int) -> None:
        """Also that groups fit a batch."""
        named = f"config.train.groups={self.groups}"
        if batch_size % self.groups:
            way = f"take {divisors(self.groups, batch_size)}"
            raise UserError(f"{named} does not divide config.train.batch_size={batch_size}: {way}")
        if self.groups == batch_size > 1 and not negatives:
            raise UserError(f"{named}: negatives are the other examples of a group, which has one: take fewer")

    def __call__(self, query_BE: jax.Array, document_BKE: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of the embeddings of a batch; the positive is `document_BKE[:, 0]`.

        Args:
          batch: its `document_id` [B, K] is equal for copies of a document, in whatever column; `log_q` [B, K] is log Q
            up to a constant; `positive_ids` [B, P], if there are any, are all positives of a query that are known, its
            own among them, of which one may be there more than once, to fill a row up; `guide` [B, 1 + K, H] has the
            guide's embeddings of the query and its documents.

        Returns:
          The loss [B], and 'recall@1' [B]: 1 where the own positive's score (not corrected) is greater than that of
          every negative, false ones too, else 0; a tie is a miss. Also how many candidates of a query's softmax are
          left out [B], each for the first reason that holds: 'masked_ids', another known positive, where these are
          masked; 'masked_margin' with `false_negatives`, of all dimensions; and 'masked_guide' with a guide.
        """
        check_sizes(self.matryoshka, document_BKE.shape[2])
        (B, K), ids_BK = document_BKE.shape[:2], batch["document_id"]
        known_BP = batch.get("positive_ids", ids_BK[:, :1])
        bias_BK = -jnp.asarray(batch["log_q"], jnp.float32) if self.log_q else jnp.zeros_like(ids_BK, jnp.float32)
        queries, documents, positives = self._texts(query_BE.astype(jnp.float32), document_BKE, batch)
        limit_BG = limit_B = None
        if self.false_negatives:
            limit_BG = _limit(queries, positives, self.matryoshka, self.false_negatives, self.false_margin)
        if self.guide:
            guides = _Texts(queries.guide_XH), _Texts(positives.guide_XH)
            limit_B = _limit(*guides, (), "absolute", self.guide_margin)[:, 0]

        def anchors(texts: _Texts, K: int, ids_BP: jax.Array) -> Anchors:
            numbers_B = jnp.zeros_like(ids_BK[:, 0]) + jnp.arange(0, B * K, K, dtype=ids_BK.dtype)
            return Anchors(texts.embedding_XE, numbers_B, ids_BP, texts.scale_XG, limit_BG, texts.guide_XH, limit_B)

        def candidates(texts: _Texts, bias_N: jax.Array, ids_NQ: jax.Array) -> Candidates:
            return on_every_device(Candidates(texts.embedding_XE, bias_N, ids_NQ, texts.scale_XG, texts.guide_XH))

        mean = self.other_positives == "mean"
        options = (self.temperature, self.block, mean, self.groups, self.matryoshka)
        rivals = candidates(documents, bias_BK.reshape(B * K), ids_BK.reshape(B * K)[:, None])
        softmax = cross_entropy(anchors(queries, K, known_BP), rivals, *options)
        loss_B = softmax.loss_B
        if self.symmetric:
            others = candidates(queries, jnp.zeros_like(ids_BK[:, 0], jnp.float32), known_BP)
            loss_B = (loss_B + cross_entropy(anchors(positives, 1, ids_BK[:, :1]), others, *options).loss_B) / 2
        metrics = {"recall@1": (softmax.positive_B > softmax.rival_B).astype(jnp.float32)}
        metrics |= {} if mean else {"masked_ids": softmax.known_B}
        metrics |= {"masked_margin": softmax.false_B} if self.false_negatives else {}
        return loss_B, metrics | ({"masked_guide": softmax.guided_B} if self.guide else {})

    def _texts(self, query_BE: jax.Array, document_BKE: jax.Array, batch: Batch) -> list["_Texts"]:
        """The queries, all documents and the positives."""
        document_BKE, sizes = document_BKE.astype(jnp.float32), self.matryoshka
        embeddings = [query_BE, document_BKE.reshape(-1, document_BKE.shape[2]), document_BKE[:, 0]]
        guides = [None] * 3
        if self.guide:
            guide_BTH = batch["guide"]
            guides = [guide_BTH[:, 0], guide_BTH[:, 1:].reshape(len(embeddings[1]), -1), guide_BTH[:, 1]]
        return [_Texts(x, guide, inverse_lengths(x, sizes) if sizes else None) for x, guide in zip(embeddings, guides)]


class _Texts(NamedTuple):
    """Queries or documents: embeddings [X, E] and those of a guide, and factors of Matryoshka's sizes."""

    embedding_XE: jax.Array
    guide_XH: Any = None
    scale_XG: Any = None


def _limit(queries: _Texts, positives: _Texts, sizes: tuple[int, ...], kind: str, margin: float) -> jax.Array:
    """The score of the own positive + margin, for each size [B, G]; without a gradient."""
    product_BE = jnp.cumsum(jax.lax.stop_gradient(queries.embedding_XE * positives.embedding_XE), axis=1)
    score_BG = product_BE[:, np.array(sizes or product_BE.shape[1:]) - 1]
    if sizes:
        score_BG *= jax.lax.stop_gradient(queries.scale_XG * positives.scale_XG)
    return score_BG + margin * (jnp.abs(score_BG) if kind == "relative" else 1)


LOSSES.register("in_batch_softmax", InBatchSoftmax)
