"""The losses of readers, against loops over all spans in numpy."""

import itertools

import jax
import numpy as np
import pytest

from retrieval.methods.reader.model_and_loss import DPRReader, ORQAReader, SpanLikelihood
from retrieval.training.loss_kind import LOSSES

B, K, L, W, N = 4, 3, 7, 3, 5
_RANDOM = np.random.default_rng(0)
INSIDE = np.zeros((B, K, L), np.int32)


for b, k in np.ndindex(B, K):
    INSIDE[b, k, 2 : 5 + (b + k) % 3] = 1


INSIDE[2, 2] = 0  # a question with two paragraphs
SPANS = np.full((B, 4, 3), -1, np.int32)
SPANS[0, :3] = (0, 2, 3), (0, 4, 4), (2, 3, 4)
SPANS[1, :1] = ((1, 2, 4),)
SPANS[2, :2] = (1, 3, 3), (1, 2, 4)
SCORES = {name: _RANDOM.normal(0, 3, (B, K, L)).astype(np.float32) for name in ("start", "end")}
SCORES["select"] = _RANDOM.normal(0, 2, (B, K)).astype(np.float32)
SCORES["pairs"] = _RANDOM.normal(0, 2, (B, K, L, W)).astype(np.float32)
RETRIEVED = np.sort(_RANDOM.normal(0, 2, (B, N)).astype(np.float32))[:, ::-1].copy()
RETRIEVED[3, 3:] = -np.inf
PLACES = np.array([[0, 1, 2], [2, 0, 4], [0, 1, 2], [0, 1, 2]], np.int32)
BATCH = {"inside": INSIDE, "spans": SPANS, "retrieved": RETRIEVED, "paragraph": PLACES}


def softmax(values):
    return np.exp(values) / np.exp(values).sum()


def probabilities(name, b, shared):
    """Of every token of a question's paragraphs, by (paragraph, token)."""
    places = [(k, i) for k in range(K) for i in range(L) if INSIDE[b, k, i]]
    groups = [places] if shared else [[place for place in places if place[0] == k] for k in range(K)]
    found = {}
    for group in groups:
        found |= dict(zip(group, softmax(np.array([SCORES[name][b][place] for place in group], float))))
    return found


def matched(b):
    return [tuple(span) for span in SPANS[b].tolist() if span[0] >= 0]


def minus_log(mass):
    return -np.log(mass) if mass else 0.0


def brute_likelihood(b, shared_norm, joint, select, retrieved=RETRIEVED):
    start, end = (probabilities(name, b, shared_norm) for name in ("start", "end"))
    paragraph = softmax(retrieved[b].astype(float))
    weight = {k: paragraph[PLACES[b, k]] if joint else 1.0 for k in range(K)}
    loss = minus_log(sum(weight[k] * start[k, i] * end[k, j] for k, i, j in matched(b)))
    if select:
        there = [k for k in range(K) if INSIDE[b, k].any()]
        chosen = dict(zip(there, softmax(SCORES["select"][b, there].astype(float))))
        loss += minus_log(sum(chosen[k] for k in {k for k, _, _ in matched(b)}))
    return loss


OF_TABLE_4 = [(True, False, False), (True, True, False), (True, False, True), (False, True, False), (False,) * 3]


@pytest.mark.parametrize("setting", OF_TABLE_4)
def test_table_4s_settings_equal_sums_over_spans(setting):
    options = dict(zip(("shared_norm", "joint", "select"), setting))
    loss_B, metrics = jax.jit(SpanLikelihood(**options))(SCORES, BATCH)
    np.testing.assert_allclose(loss_B, [brute_likelihood(b, **options) for b in range(B)], rtol=1e-5, atol=1e-6)
    assert loss_B[3] == 0 and (loss_B[:3] > 0).all()
    assert metrics["answered"].tolist() == [1, 1, 1, 0] and metrics["spans"].tolist() == [3, 1, 2, 0]
    starts = [probabilities("start", b, options["shared_norm"]) for b in range(B)]
    is_best = [max(of, key=of.get) in [(k, i) for k, i, _ in matched(b)] for b, of in enumerate(starts)]
    np.testing.assert_array_equal(metrics["start@1"], is_best)


def test_dprs_reader_selects_the_positive_and_reads_it_alone():
    loss_B, _ = DPRReader()(SCORES, BATCH)
    for b in range(B):
        holding = sorted({k for k, _, _ in matched(b)})
        if not holding:
            assert loss_B[b] == 0
            continue
        positive, there = holding[0], [k for k in range(K) if INSIDE[b, k].any()]
        compared = [k for k in there if k == positive or k not in holding]
        chosen = dict(zip(compared, softmax(SCORES["select"][b, compared].astype(float))))
        start, end = (probabilities(name, b, False) for name in ("start", "end"))
        mass = sum(start[k, i] * end[k, j] for k, i, j in matched(b) if k == positive)
        np.testing.assert_allclose(loss_B[b], -np.log(chosen[positive]) - np.log(mass), rtol=1e-5)


def brute_orqa(b, retrieved):
    score = {}
    for k, i, w in itertools.product(range(K), range(L), range(W)):
        if i + w < L and INSIDE[b, k, i : i + w + 1].all():
            score[k, i, i + w] = float(SCORES["pairs"][b, k, i, w]) + float(retrieved[b, PLACES[b, k]])
    chances = dict(zip(score, softmax(np.array(list(score.values())))))
    return minus_log(sum(chances.get(span, 0) for span in matched(b)))


def test_orqas_reader_is_a_softmax_over_all_spans():
    loss_B, _ = jax.jit(ORQAReader())(SCORES, BATCH)
    np.testing.assert_allclose(loss_B, [brute_orqa(b, RETRIEVED) for b in range(B)], rtol=1e-5, atol=1e-6)


CANDIDATES = np.where(np.isfinite(RETRIEVED), np.arange(N, dtype=np.int32), -1)
HOLDS = np.array([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]], np.int32)
TOWER = _RANDOM.normal(0, 2, (B, N)).astype(np.float32)


@pytest.mark.parametrize("loss", [SpanLikelihood(joint=True, early=True, temperature=0.5), ORQAReader(True, 0.5)])
def test_the_early_loss_is_of_the_question_towers_scores(loss):
    """And these weigh the spans, with their gradient. Of a question without spans the early loss is left."""
    batch = BATCH | {"candidates": CANDIDATES, "holds": HOLDS}

    def value(tower_BN):
        loss_B, metrics = loss(SCORES | {"retriever": tower_BN}, batch)
        return (loss_B - metrics["early"]).sum(), (loss_B, metrics["early"])

    gradient_BN, (loss_B, early_B) = jax.jit(jax.grad(value, has_aux=True))(TOWER)
    scores = np.where(CANDIDATES >= 0, TOWER.astype(float), -np.inf) / 0.5
    early = [minus_log(softmax(scores[b]) @ HOLDS[b]) for b in range(B)]
    of_spans = (lambda b: brute_orqa(b, scores)) if isinstance(loss, ORQAReader) else (lambda b: joint_of(b, scores))
    np.testing.assert_allclose(early_B, early, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss_B, [early[b] + of_spans(b) for b in range(B)], rtol=1e-5, atol=1e-6)
    assert early_B[1] == 0 < early_B[3] and np.abs(gradient_BN[:3]).max(axis=1).min() > 0 and not gradient_BN[3].any()


def joint_of(b, scores):
    return brute_likelihood(b, True, True, False, scores)


@pytest.mark.parametrize("name", ["span_likelihood", "dpr_reader", "orqa_reader"])
def test_gradients_are_finite_and_none_without_a_span(name):
    loss = LOSSES[name]()
    gradients = jax.jit(jax.grad(lambda scores: loss(scores, BATCH)[0].sum()))(SCORES)
    assert all(np.isfinite(value).all() for value in jax.tree.leaves(gradients))
    assert all(not np.asarray(value[3]).any() for value in gradients.values())
    read = gradients["pairs" if name == "orqa_reader" else "start"]
    assert np.asarray(read[0]).any() and not np.asarray(read)[INSIDE == 0].any()
