"""Readers: a question and a paragraph in one row, to scores of where the answer stands; and the losses of these.

Letters of shapes beside those of `text`: B questions of the global batch, K paragraphs of each, W lengths of a span, D
size of a span's representation, S matched spans of a question, N candidates of its retriever.

A reader gives scores by name, float32, which the recipe brings to these shapes:

    start, end   [B, K, L]; of a token as the first and as the last of an answer
    select       [B, K]; of a paragraph, where the loss has that head trained
    pairs        [B, K, L, W]; of the span of w + 1 tokens from a token on, in place of `start` and `end`
    retriever    [B, N]; of the candidates by the question tower, where that is trained too

A batch has `spans` int32 [B, S, 3], the paragraph, first and last token of every matched span, -1 where there is none;
`inside` [B, K, L], 1 for the tokens of paragraphs; `retrieved` float32 [B, N], the retriever's scores, -inf where there
are fewer; `paragraph` [B, K], the place of each paragraph among the candidates. A question without a matched span has
no span loss: it is 0. Where the question tower is trained, N is larger than K, `candidates` int32 [B, N] is -1 where
there are fewer, and `holds` [B, N] is 1 for those that hold an answer.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.common.errors import UserError
from retrieval.common.runtime.arrays import reshape_rows
from retrieval.models.norms import LayerNorm
from retrieval.models.pooling import first, last
from retrieval.models.text import Text
from retrieval.models.transformer import INIT, Transformer, dropout, split
from retrieval.models.transformer_config import TransformerConfig
from retrieval.models.two_tower import TwoTower
from retrieval.training.loss_kind import LOSSES, Batch, Loss, Metrics

# The inputs of a reader's loss.
SPANS, SPAN_PAIRS = "the ends of spans", "whole spans"

ANSWER_TOKENS = 10  # of the longest answer (Lee et al. 2019, section 5.2)
PAIR_SIZE = 256  # of a span's representation (Lee et al. 2019)
_NORM_EPSILON = 1e-5
_NEVER = -1e30  # the score of what is never chosen; of -inf gradients are NaN


class SpanReader(nnx.Module):
    """An encoder; a score of each token as the first and as the last of an answer, or one of each span.

    Whole spans are scored as ORQA does (Lee et al. 2019, section 5.2): w . LayerNorm(relu(W_s h_first + W_e h_last)).
    Where paragraphs are selected, a linear unit on BERT's pooled output scores each (Karpukhin et al. 2020). Where the
    question tower of its retriever is trained too, a reader has that tower.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        widths: int = 0,
        selects: bool = False,
        retriever: TwoTower | None = None,
        rngs: nnx.Rngs,
    ):
        """Args:
        widths: tokens of the longest span, where whole spans are scored; 0: their ends are.
        selects: whether paragraphs have a score.
        retriever: the question tower, as a model of one tower.
        """
        self.widths, size = widths, config.hidden_size
        if retriever:
            self.retriever = retriever
        self.encoder = Transformer(config, rngs=rngs)
        if widths:
            self.first = nnx.Linear(size, PAIR_SIZE, kernel_init=INIT, rngs=rngs)
            self.last = nnx.Linear(size, PAIR_SIZE, use_bias=False, kernel_init=INIT, rngs=rngs)
            self.norm = LayerNorm(PAIR_SIZE, epsilon=_NORM_EPSILON, rngs=rngs)
            self.span = nnx.Linear(PAIR_SIZE, 1, kernel_init=INIT, rngs=rngs)
        else:
            self.ends = nnx.Linear(size, 2, kernel_init=INIT, rngs=rngs)
        if selects:
            self.pooler = nnx.Linear(size, size, kernel_init=INIT, rngs=rngs)
            self.select = nnx.Linear(size, 1, kernel_init=INIT, rngs=rngs)

    def __call__(self, pairs: Text, dropout_key: jax.Array | None) -> dict[str, jax.Array]:
        """Scores by name, float32: 'start' and 'end' [R, L], or 'pairs' [R, L, W]; and 'select' [R].

        Those of tokens outside of paragraphs mean nothing.

        Args:
          pairs: [CLS] question [SEP] paragraph [SEP], one text a row.
        """
        encoder_key, key, pooled_key = split(dropout_key, 3)
        rate = self.encoder.config.dropout
        hidden_RLH = self.encoder(pairs, dropout_key=encoder_key).astype(jnp.float32)
        scores = {}
        if hasattr(self, "select"):
            # Where tokens see none behind them, only the last has seen the paragraph.
            pool = last if self.encoder.config.architecture.causal else first
            pooled_RH = jnp.tanh(self.pooler(pool(hidden_RLH, pairs)))
            scores["select"] = self.select(dropout(pooled_RH, rate, pooled_key))[:, 0]
        hidden_RLH = dropout(hidden_RLH, rate, key)
        if self.widths:
            # One width after the other: together they would be W times as large as the hidden states.
            score = lambda first_RLD, last_RLD: self.span(self.norm(jax.nn.relu(first_RLD + last_RLD)))[:, :, 0]  # noqa: E731
            return scores | {"pairs": _of_spans(score, self.first(hidden_RLH), self.last(hidden_RLH), self.widths, 1)}
        ends_RL2 = self.ends(hidden_RLH)
        return scores | {"start": ends_RL2[:, :, 0], "end": ends_RL2[:, :, 1]}

    def best(self, pairs: Text, inside_RL: jax.Array, widths: int, count: int) -> jax.Array:
        """The best spans of each paragraph, float32 [R, 1 + 3 * count].

        That is the score of the paragraph (0 where none is selected), then the scores of the spans, best first, then
        their first and then their last tokens. A span that is not inside has a score below -1e29.

        Args:
          inside_RL: 1 for the tokens of the paragraph.
          widths: tokens of the longest span.
          count: no more than the spans that a row has.
        """
        scores = self(pairs, None)
        R, L = inside_RL.shape
        pairs_RLW = scores["pairs"] if self.widths else _of_spans(jnp.add, scores["start"], scores["end"], widths)
        W = pairs_RLW.shape[2]
        is_inside_RLW = inside_pairs(inside_RL, W)
        flat_RT = reshape_rows(jnp.where(is_inside_RLW, pairs_RLW, _NEVER), R, L * W)
        best_RM, places_RM = jax.lax.top_k(flat_RT, count)
        select_R = scores.get("select", jnp.zeros_like(best_RM[:, 0]))
        firsts_RM, lasts_RM = places_RM // W, places_RM // W + places_RM % W
        return jnp.concatenate([select_R[:, None], best_RM, firsts_RM * 1.0, lasts_RM * 1.0], axis=1)


@dataclasses.dataclass(frozen=True)
class ReaderLoss(Loss):
    """A loss of readers.

    Attributes:
      selects: whether it trains the head that scores paragraphs.
      answer_weight: the share of a span's score beside that of its paragraph, where none is configured.
    """

    selects = False
    answer_weight = 1.0


@dataclasses.dataclass(frozen=True)
class SpanLikelihood(ReaderLoss):
    """All matched spans of a question's paragraphs.

        loss = -log sum over matched spans of P_start(first) * P_end(last)

    ProQA's reader (Xiong et al. 2020, equations 2 to 4; settings of Table 4), the marginal likelihood of Clark &
    Gardner (2018). The one to take where answers are texts, and nobody has marked where they stand.

    Attributes:
      shared_norm: whether both softmaxes run over all positions of all paragraphs, or over each paragraph alone.
      joint: whether each span's probability is multiplied by that of its paragraph: the softmax of the retriever's
        scores over all N candidates.
      select: whether -log of the mass that `select` puts on paragraphs with a matched span is added.
      early: whether the question tower is trained too, as `early_loss` has it. `joint` takes its scores then.
      temperature: the retriever's scores are divided by it.
    """

    inputs = SPANS

    shared_norm: bool = True
    joint: bool = False
    select: bool = False
    early: bool = False
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Also that one thing alone weighs paragraphs."""
        super().__post_init__()
        if self.joint and self.select:
            raise UserError("config.train.joint and config.train.select both weigh paragraphs: set one to False")

    @property
    def selects(self) -> bool:
        """As `ReaderLoss.selects`."""
        return self.select

    @property
    def answer_weight(self) -> float:
        """As `ReaderLoss.answer_weight`."""
        return self.temperature / (1 + self.temperature) if self.joint else 0.5 if self.select else 1.0

    def __call__(self, scores: Mapping[str, jax.Array], batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of a reader's scores by name: the loss [B], and what `_metrics` and `early_loss` say."""
        spans_BS3, is_span_BS = batch["spans"], batch["spans"][:, :, 0] >= 0
        start_BKL, log_BS = _of_ends(scores, batch, self.shared_norm)
        if self.joint:
            retriever_BN = jax.nn.log_softmax(_retriever(scores, batch, self.temperature))
            log_BS += _at(jnp.take_along_axis(retriever_BN, batch["paragraph"], axis=1), spans_BS3[:, :, [0]])
        loss_B = _negative_log_sum(log_BS, is_span_BS)
        if self.select:
            chosen_BK = jax.nn.log_softmax(_of_paragraphs(scores["select"], batch["inside"]))
            loss_B += _negative_log_sum(chosen_BK, _holds(spans_BS3, chosen_BK.shape[1]))
        early_B, more = early_loss(scores, batch, self.temperature) if self.early else (0.0, {})
        return loss_B + early_B, _metrics(start_BKL, spans_BS3) | more


def early_loss(scores: Mapping[str, jax.Array], batch: Batch, temperature: float = 1.0) -> tuple[jax.Array, Metrics]:
    """-log of the probability of the candidates that hold an answer, a softmax over all N (Xiong et al., equation 3).

    It is 0 where none holds one.

    Returns:
      The loss [B], and each [B]:
      'early': the same.
      'retriever@1': 1 where a candidate that holds an answer has a higher score than all others; a tie is a miss.
    """
    retriever_BN, holds_BN = _retriever(scores, batch, temperature), batch["holds"] > 0
    loss_B = _negative_log_sum(jax.nn.log_softmax(retriever_BN), holds_BN)
    right_B, wrong_B = (jnp.where(is_in, retriever_BN, -jnp.inf).max(axis=1) for is_in in (holds_BN, ~holds_BN))
    is_right_B = right_B > wrong_B
    return loss_B, {"early": loss_B, "retriever@1": is_right_B.astype(jnp.float32)}


@dataclasses.dataclass(frozen=True)
class DPRReader(ReaderLoss):
    """The positive paragraph and its spans.

        loss = -log P_select(positive) - log sum over its matched spans of P_start(first) * P_end(last)

    DPR's reader (Karpukhin et al. 2020, section 6.1). Take it where paragraphs have to be ranked as well as read.

    The positive is the first paragraph with a matched span. Others that have one are no negatives. Start and end are
    normalised over the positive alone. Of a question without a matched span nothing is trained.
    """

    inputs = SPANS

    selects = True
    answer_weight = 0.0  # the head chooses the paragraph, and of equal spans the best comes first

    def __call__(self, scores: Mapping[str, jax.Array], batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of a reader's scores by name: the loss [B], and what `_metrics` says."""
        spans_BS3, (start_BKL, log_BS) = batch["spans"], _of_ends(scores, batch, shared=False)
        K = start_BKL.shape[1]
        holds_BK = _holds(spans_BS3, K)
        first_B1 = holds_BK.argmax(axis=1)[:, None]
        is_positive_BK = jnp.arange(K) == first_B1
        compared_BK = jnp.where(holds_BK & ~is_positive_BK, _NEVER, _of_paragraphs(scores["select"], batch["inside"]))
        loss_B = _negative_log_sum(jax.nn.log_softmax(compared_BK), is_positive_BK & holds_BK)
        is_own_BS = spans_BS3[:, :, 0] == jnp.where(holds_BK.any(axis=1, keepdims=True), first_B1, -2)
        return loss_B + _negative_log_sum(log_BS, is_own_BS), _metrics(start_BKL, spans_BS3)


@dataclasses.dataclass(frozen=True)
class ORQAReader(ReaderLoss):
    """All spans with their retrieval scores.

        loss = -log sum over matched spans of softmax(reader's score + retriever's score of the paragraph / temperature)

    ORQA's reader (Lee et al. 2019, sections 3 and 6), over all spans of all paragraphs of a question. Take it for
    answers of a few words: spans longer than W tokens are none.

    Attributes:
      early, temperature: as of `SpanLikelihood`.
    """

    inputs = SPAN_PAIRS

    early: bool = False
    temperature: float = 1.0

    @property
    def answer_weight(self) -> float:
        """As `ReaderLoss.answer_weight`."""
        return self.temperature / (1 + self.temperature)  # of the sum: the reader's + the retriever's / temperature

    def __call__(self, scores: Mapping[str, jax.Array], batch: Batch) -> tuple[jax.Array, Metrics]:
        """Of a reader's scores by name: the loss [B], and what `_metrics` and `early_loss` say."""
        spans_BS3, pairs_BKLW = batch["spans"], scores["pairs"].astype(jnp.float32)
        W = pairs_BKLW.shape[3]
        retriever_BN = _retriever(scores, batch, self.temperature)
        total_BKLW = pairs_BKLW + jnp.take_along_axis(retriever_BN, batch["paragraph"], axis=1)[:, :, None, None]
        log_BKLW = _normalised(jnp.where(inside_pairs(batch["inside"], W), total_BKLW, _NEVER))
        longer_BS = spans_BS3[:, :, 2] - spans_BS3[:, :, 1]
        is_span_BS = (spans_BS3[:, :, 0] >= 0) & (longer_BS < W)
        places_BS3 = jnp.stack([spans_BS3[:, :, 0], spans_BS3[:, :, 1], jnp.minimum(longer_BS, W - 1)], axis=2)
        loss_B = _negative_log_sum(_at(log_BKLW, places_BS3), is_span_BS)
        early_B, more = early_loss(scores, batch, self.temperature) if self.early else (0.0, {})
        return loss_B + early_B, _metrics(log_BKLW.max(axis=3), spans_BS3) | more


def inside_pairs(inside_L: jax.Array, widths: int) -> jax.Array:
    """Which spans of 1, 2, ... `widths` tokens lie in their paragraph, bool [..., L, W]."""
    return _of_spans(jnp.logical_and, inside_L > 0, inside_L > 0, widths)


def _of_spans(combined: Callable, first: jax.Array, last: jax.Array, widths: int, axis: int = -1) -> jax.Array:
    """What is combined of the first and the last token of every span, [..., L, W]; beyond the row the last has 0.

    Args:
      axis: of tokens.
    """
    L, padding = last.shape[axis], [(0, 0)] * last.ndim
    padding[axis] = (0, widths - 1)
    last = jnp.pad(last, padding)
    lasts = (jax.lax.slice_in_dim(last, width, width + L, axis=axis) for width in range(widths))
    return jnp.stack([combined(first, last) for last in lasts], axis=-1)


def _of_ends(scores: Mapping[str, jax.Array], batch: Batch, shared: bool) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of tokens as the first of an answer [B, K, L], and of spans [B, S].

    Args:
      shared: whether the softmax is over all paragraphs of a question, or over each.
    """
    norm = _normalised if shared else jax.nn.log_softmax
    each = (scores[name].astype(jnp.float32) for name in ("start", "end"))
    start_BKL, end_BKL = (norm(jnp.where(batch["inside"] > 0, score_BKL, _NEVER)) for score_BKL in each)
    spans_BS3 = batch["spans"]
    return start_BKL, _at(start_BKL, spans_BS3[:, :, [0, 1]]) + _at(end_BKL, spans_BS3[:, :, [0, 2]])


def _normalised(score: jax.Array) -> jax.Array:
    """Log-softmax over everything that a question has, [B, ...]."""
    return score - jax.nn.logsumexp(score, axis=tuple(range(1, score.ndim)), keepdims=True)


def _of_paragraphs(score_BK: jax.Array, inside_BKL: jax.Array) -> jax.Array:
    """Scores of paragraphs; a place without a paragraph is never chosen."""
    return jnp.where((inside_BKL > 0).any(axis=2), score_BK.astype(jnp.float32), _NEVER)


def _retriever(scores: Mapping[str, jax.Array], batch: Batch, temperature: float) -> jax.Array:
    """Scores of the candidates [B, N]: those of the question tower, or those that the retriever gave."""
    if "retriever" in scores:
        score_BN = jnp.where(batch["candidates"] >= 0, scores["retriever"].astype(jnp.float32), _NEVER)
    else:
        score_BN = jnp.maximum(batch["retrieved"].astype(jnp.float32), _NEVER)
    return score_BN / temperature if temperature != 1 else score_BN


def _at(values: jax.Array, places_BSD: jax.Array) -> jax.Array:
    """Values [B, ...] at places of D coordinates, [B, S]; of places of -1, whatever stands somewhere."""
    return jax.vmap(lambda values, places_SD: values[tuple(places_SD.T)])(values, places_BSD)


def _negative_log_sum(log_BS: jax.Array, mask_BS: jax.Array) -> jax.Array:
    """-log of the sum of the probabilities that count; 0 where none does."""
    total_B = jax.nn.logsumexp(jnp.where(mask_BS, log_BS, _NEVER), axis=1)
    return jnp.where(mask_BS.any(axis=1), -total_B, 0.0)


def _holds(spans_BS3: jax.Array, paragraphs: int) -> jax.Array:
    """Which paragraphs have a matched span, bool [B, K]."""
    return (spans_BS3[:, :, 0, None] == jnp.arange(paragraphs)).any(axis=1)


def _metrics(start_BKL: jax.Array, spans_BS3: jax.Array) -> Metrics:
    """Each [B].

    Returns:
      'start@1': 1 where the most probable first token is that of a matched span.
      'answered': 1 where there is a matched span.
      'spans': how many there are. Many say that an answer is a word that is everywhere.
    """
    is_span_BS = spans_BS3[:, :, 0] >= 0
    best_B = reshape_rows(start_BKL, len(start_BKL), -1).argmax(axis=1)
    is_best_BS = spans_BS3[:, :, 0] * start_BKL.shape[2] + spans_BS3[:, :, 1] == best_B[:, None]
    return {
        "start@1": (is_best_BS & is_span_BS).any(axis=1).astype(jnp.float32),
        "answered": is_span_BS.any(axis=1).astype(jnp.float32),
        "spans": is_span_BS.sum(axis=1).astype(jnp.float32),
    }


LOSSES.register("span_likelihood", SpanLikelihood)
LOSSES.register("dpr_reader", DPRReader)
LOSSES.register("orqa_reader", ORQAReader)
