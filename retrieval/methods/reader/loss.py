"""Losses of readers: where in the retrieved paragraphs of a question its answer stands.

Letters of shapes: B questions of the global batch, K paragraphs of each, L tokens of a row, W lengths of a span, S
matched spans of a question, N candidates of its retriever.

A reader gives scores by name, float32:

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

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from retrieval.arrays import reshape_rows
from retrieval.errors import UserError
from retrieval.training.loss_kind import LOSSES, SPAN_PAIRS, SPANS, TEMPERATURE, Batch, Loss, Metrics, Options

_NEVER = -1e30  # in place of -inf, whose gradients are NaN


def span_likelihood(
    scores: Mapping[str, jax.Array],
    batch: Batch,
    *,
    shared_norm: bool = True,
    joint: bool = False,
    select: bool = False,
    early: bool = False,
    temperature: float = 1.0,
) -> tuple[jax.Array, Metrics]:
    """-log of the probability of all matched spans (Xiong et al. 2020, equations 2 to 4; settings of Table 4).

    P(span) = P_start(first) * P_end(last).

    Args:
      shared_norm: whether both softmaxes run over all positions of all paragraphs (Clark & Gardner 2018), or over each
        paragraph alone.
      joint: whether each span's probability is multiplied by that of its paragraph: the softmax of the retriever's
        scores over all N candidates.
      select: whether -log of the mass that `select` puts on paragraphs with a matched span is added.
      early: whether the question tower is trained too, as `early_loss` has it. `joint` takes its scores then.
      temperature: the retriever's scores are divided by it.

    Returns:
      The loss [B], and what `_found` and `early_loss` say.
    """
    start_BKL, end_BKL = (_log_softmax(scores[name], batch["inside"], shared_norm) for name in ("start", "end"))
    spans_BS3, is_span_BS = batch["spans"], batch["spans"][:, :, 0] >= 0
    log_BS = _at(start_BKL, spans_BS3[:, :, [0, 1]]) + _at(end_BKL, spans_BS3[:, :, [0, 2]])
    if joint:
        retriever_BN = jax.nn.log_softmax(_retriever(scores, batch, temperature))
        log_BS += _at(_of_retriever(retriever_BN, batch), spans_BS3[:, :, [0]])
    loss_B = _negative_log_sum(log_BS, is_span_BS)
    if select:
        chosen_BK = jax.nn.log_softmax(_of_paragraphs(scores["select"], batch["inside"]))
        loss_B += _negative_log_sum(chosen_BK, _holds(spans_BS3, chosen_BK.shape[1]))
    early_B, more = early_loss(scores, batch, temperature) if early else (0.0, {})
    return loss_B + early_B, _found(start_BKL, spans_BS3) | more


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


def dpr_reader(scores: Mapping[str, jax.Array], batch: Batch) -> tuple[jax.Array, Metrics]:
    """-log of selecting the positive paragraph, and of its matched spans (Karpukhin et al. 2020, section 6.1).

    The positive is the first paragraph with a matched span. Others that have one are no negatives. Start and end are
    normalised over the positive alone. Of a question without a matched span nothing is trained.

    Returns:
      The loss [B], and what `_found` says.
    """
    spans_BS3 = batch["spans"]
    start_BKL, end_BKL = (_log_softmax(scores[name], batch["inside"], False) for name in ("start", "end"))
    K = start_BKL.shape[1]
    holds_BK = _holds(spans_BS3, K)
    is_positive_BK = jnp.arange(K) == holds_BK.argmax(axis=1)[:, None]
    compared_BK = jnp.where(holds_BK & ~is_positive_BK, _NEVER, _of_paragraphs(scores["select"], batch["inside"]))
    loss_B = _negative_log_sum(jax.nn.log_softmax(compared_BK), is_positive_BK & holds_BK)
    is_own_BS = spans_BS3[:, :, 0] == jnp.where(holds_BK.any(axis=1), holds_BK.argmax(axis=1), -2)[:, None]
    log_BS = _at(start_BKL, spans_BS3[:, :, [0, 1]]) + _at(end_BKL, spans_BS3[:, :, [0, 2]])
    return loss_B + _negative_log_sum(log_BS, is_own_BS), _found(start_BKL, spans_BS3)


def orqa_reader(
    scores: Mapping[str, jax.Array], batch: Batch, *, early: bool = False, temperature: float = 1.0
) -> tuple[jax.Array, Metrics]:
    """-log of the matched spans among all spans of all paragraphs (Lee et al. 2019, sections 3 and 6).

    A span's score is the reader's plus its paragraph's of the retriever. Spans longer than W tokens are none.

    Args:
      early, temperature: as `span_likelihood` has them.

    Returns:
      The loss [B], and what `_found` and `early_loss` say.
    """
    spans_BS3, pairs_BKLW = batch["spans"], scores["pairs"].astype(jnp.float32)
    W = pairs_BKLW.shape[3]
    total_BKLW = pairs_BKLW + _of_retriever(_retriever(scores, batch, temperature), batch)[:, :, None, None]
    log_BKLW = _normalised(jnp.where(inside_pairs(batch["inside"], W), total_BKLW, _NEVER))
    longer_BS = spans_BS3[:, :, 2] - spans_BS3[:, :, 1]
    is_span_BS = (spans_BS3[:, :, 0] >= 0) & (longer_BS < W)
    places_BS3 = jnp.stack([spans_BS3[:, :, 0], spans_BS3[:, :, 1], jnp.minimum(longer_BS, W - 1)], axis=2)
    loss_B = _negative_log_sum(_at(log_BKLW, places_BS3), is_span_BS)
    early_B, more = early_loss(scores, batch, temperature) if early else (0.0, {})
    return loss_B + early_B, _found(log_BKLW.max(axis=3), spans_BS3) | more


def inside_pairs(inside_BKL: jax.Array, widths: int) -> jax.Array:
    """Which spans of 1, 2, ... `widths` tokens lie in their paragraph, bool [B, K, L, W]."""
    inside_BKL, L = inside_BKL > 0, inside_BKL.shape[2]
    padded = jnp.pad(inside_BKL, ((0, 0), (0, 0), (0, widths - 1)))
    return jnp.stack([inside_BKL & padded[:, :, width : width + L] for width in range(widths)], axis=3)


def _log_softmax(score_BKL: jax.Array, inside_BKL: jax.Array, shared: bool) -> jax.Array:
    """Log-probabilities of tokens inside paragraphs, over each paragraph or over all of a question."""
    masked_BKL = jnp.where(inside_BKL > 0, score_BKL.astype(jnp.float32), _NEVER)
    return _normalised(masked_BKL) if shared else jax.nn.log_softmax(masked_BKL)


def _normalised(score: jax.Array) -> jax.Array:
    """Log-softmax over everything that a question has, [B, ...]."""
    return score - jax.nn.logsumexp(score, axis=tuple(range(1, score.ndim)), keepdims=True)


def _of_paragraphs(score_BK: jax.Array, inside_BKL: jax.Array) -> jax.Array:
    """Scores of paragraphs; a place without a paragraph is never chosen."""
    return jnp.where((inside_BKL > 0).any(axis=2), score_BK.astype(jnp.float32), _NEVER)


def _of_retriever(score_BN: jax.Array, batch: Batch) -> jax.Array:
    """What the candidates of a question have, for its paragraphs, [B, K]."""
    return jnp.take_along_axis(score_BN, batch["paragraph"], axis=1)


def _retriever(scores: Mapping[str, jax.Array], batch: Batch, temperature: float) -> jax.Array:
    """Scores of the candidates [B, N]: those of the question tower, or those that the retriever gave."""
    if "retriever" in scores:
        score_BN = jnp.where(batch["candidates"] >= 0, scores["retriever"].astype(jnp.float32), _NEVER)
    else:
        score_BN = jnp.maximum(batch["retrieved"].astype(jnp.float32), _NEVER)
    return score_BN / temperature if temperature != 1 else score_BN


def _at(values: jax.Array, places_BSD: jax.Array) -> jax.Array:
    """Values [B, ...] at places of D coordinates, [B, S]; of places of -1, whatever stands somewhere."""
    sizes = values.shape[1 : 1 + places_BSD.shape[2]]
    flat_BS = places_BSD[:, :, 0]
    for axis, size in enumerate(sizes[1:], 1):
        flat_BS = flat_BS * size + places_BSD[:, :, axis]
    flat_BT = reshape_rows(values, len(values), -1)
    return jnp.take_along_axis(flat_BT, jnp.maximum(flat_BS, 0), axis=1)


def _negative_log_sum(log_BS: jax.Array, counts_BS: jax.Array) -> jax.Array:
    """-log of the sum of the probabilities that count; 0 where none does."""
    total_B = jax.nn.logsumexp(jnp.where(counts_BS, log_BS, _NEVER), axis=1)
    return jnp.where(counts_BS.any(axis=1), -total_B, 0.0)


def _holds(spans_BS3: jax.Array, paragraphs: int) -> jax.Array:
    """Which paragraphs have a matched span, bool [B, K]."""
    return (spans_BS3[:, :, 0, None] == jnp.arange(paragraphs)).any(axis=1)


def _found(start_BKL: jax.Array, spans_BS3: jax.Array) -> Metrics:
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


def _check(options: Options) -> None:
    if options["train.joint"] and options["train.select"]:
        raise UserError(
            "config.train.joint=True weighs paragraphs by the retriever, and config.train.select=True by a head of the "
            "reader: set one of them to False"
        )


def _weight(options: Options) -> float:
    if options["train.joint"]:
        return _weight_of_sum(options)
    return 0.5 if options["train.select"] else 1.0


def _weight_of_sum(options: Options) -> float:
    """In proportion to the sum that was trained: the reader's score + the retriever's / temperature."""
    return options[TEMPERATURE] / (1 + options[TEMPERATURE])


LOSSES.register(
    "span_likelihood",
    Loss(
        span_likelihood,
        SPANS,
        "all matched spans of a question's paragraphs (ProQA)",
        options=("train.shared_norm", "train.joint", "train.select", "train.early", TEMPERATURE),
        selects=lambda options: options["train.select"],
        retrieves=lambda options: options["train.early"],
        answer_weight=_weight,
        check=_check,
    ),
)
LOSSES.register(
    "dpr_reader",
    Loss(
        dpr_reader,
        SPANS,
        "the positive paragraph and its spans (DPR)",
        options=(),
        selects=lambda options: True,
        answer_weight=lambda options: 0.0,  # the head chooses the paragraph, and of equal spans the best comes first
    ),
)
LOSSES.register(
    "orqa_reader",
    Loss(
        orqa_reader,
        SPAN_PAIRS,
        "all spans with their retrieval scores (ORQA)",
        options=("train.early", TEMPERATURE),
        retrieves=lambda options: options["train.early"],
        answer_weight=_weight_of_sum,
    ),
)
