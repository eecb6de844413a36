"""Losses of a query's candidates against loops in float64."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from retrieval.methods.reranker.loss import BinaryCrossEntropy, ClassCrossEntropy
from retrieval.training.objectives.distillation import KLDivergence, MarginMSE


def fields(teacher, ids):
    """The fields of a batch that losses of candidates read."""
    return {"document_id": ids, "teacher": teacher}


LOSSES = {
    "binary": lambda score, teacher, ids: BinaryCrossEntropy()(score, fields(teacher, ids)),
    "class": lambda score, teacher, ids: ClassCrossEntropy()(jnp.stack([-score, score], axis=2), fields(teacher, ids)),
    "margin_mse": lambda score, teacher, ids: MarginMSE()(score, fields(teacher, ids)),
    "kl": lambda score, teacher, ids: KLDivergence()(score, fields(teacher, ids)),
}


def batch(B=16, K=4, seed=0):
    """Few ids: some negatives are copies of the positive."""
    random = np.random.default_rng(seed)
    score, teacher = random.normal(size=(2, B, K)).astype(np.float32)
    ids = random.integers(0, 4, (B, K)).astype(np.int32)
    assert (ids[:, 1:] == ids[:, :1]).any() and (ids[:, 1:] != ids[:, :1]).any()
    return score, 3 * teacher, ids


def log_softmax(values):
    return [value - math.log(sum(map(math.exp, values))) for value in values]


def by_loops(name, score, teacher, ids):
    """Losses, recall@1 and spreads, one query at a time."""
    losses, hits, spreads = [], [], []
    for row, said, own in zip(score.astype(np.float64), teacher.astype(np.float64), ids):
        chosen = [place for place in range(len(own)) if place == 0 or own[place] != own[0]]
        s, t = row[chosen].tolist(), said[chosen].tolist()
        if name in ("binary", "class"):
            factor = 2 if name == "class" else 1  # the difference of the two logits
            signs = [1] + [-1] * (len(s) - 1)
            terms = [math.log(1 + math.exp(-sign * factor * value)) for sign, value in zip(signs, s)]
            loss = sum(terms) / len(terms)
        elif name == "margin_mse":
            terms = [((s[0] - a) - (t[0] - b)) ** 2 for a, b in zip(s[1:], t[1:])]
            loss = sum(terms) / len(terms) if terms else 0
        else:
            loss = sum(math.exp(b) * (b - a) for a, b in zip(log_softmax(s), log_softmax(t)))
        losses.append(loss)
        hits.append(all(s[0] > value for value in s[1:]))
        values = [-math.log(1 + math.exp(-2 * value)) for value in s] if name == "class" else s
        spreads.append(np.std(values))
    return np.array(losses), np.array(hits, np.float32), np.array(spreads)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("K", [2, 4])
def test_losses_of_candidates_are_those_of_the_loops(name, K):
    arrays = batch(K=K)
    loss, metrics = LOSSES[name](*arrays)
    expected, hits, spreads = by_loops(name, *arrays)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(metrics["recall@1"], hits)
    np.testing.assert_allclose(metrics["spread"], spreads, atol=1e-5)
    assert 0 < hits.mean() < 1


def test_temperatures_divide_the_scores_of_the_student_or_the_teacher():
    score, teacher, ids = batch()
    for loss in (MarginMSE, KLDivergence):
        for own, theirs in ((0.5, 1.0), (1.0, 0.25)):
            found, _ = loss(own, teacher_temperature=theirs)(score, fields(teacher, ids))
            np.testing.assert_allclose(found, loss()(score / own, fields(teacher / theirs, ids))[0], rtol=1e-4)
