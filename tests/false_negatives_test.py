"""Negatives that score above the own positive are left out of the in-batch softmax, as false ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_loss_same_on_any_mesh
from support.losses import in_batch_softmax
from support.modules import assert_finite_differences
from support.tiny import make_config

from retrieval.recipes.recipe import recipe_of

B, K, E = 8, 2, 5


def loss_of_scores(scores, **options):
    """The loss of one query, and its metrics: the positive's score is the first, all are cosines."""
    scores = jnp.array(scores)
    query, document = jnp.array([[1.0, 0.0]]), jnp.stack([scores, jnp.sqrt(1 - scores**2)], axis=1)[None]
    ids = jnp.arange(len(scores), dtype=jnp.int32)[None]
    (loss,), metrics = in_batch_softmax(query, document, ids, None, temperature=0.05, **options)
    return float(loss), {name: float(value[0]) for name, value in metrics.items()}


@pytest.mark.parametrize(
    ("options", "loss", "left_out"),
    [
        ({}, 2.545032, None),
        ({"false_negatives": "absolute"}, 1.313352, 1),  # Qwen3-Embedding's margin of 0.1 drops 0.81
        ({"false_negatives": "absolute", "false_margin": 0.0}, 0.000335, 2),  # and 0.75
    ],
)
def test_what_is_left_out_by_hand(options, loss, left_out):
    found, metrics = loss_of_scores([0.70, 0.75, 0.81, 0.30], **options)
    assert found == pytest.approx(loss, abs=1e-5)
    assert metrics == {"recall@1": 0, "masked_ids": 0} | ({} if left_out is None else {"masked_margin": left_out})


def test_a_relative_margin_is_of_the_size_of_the_positives_score():
    """Also where that is below 0: -0.5 - 0.05 * 0.5 is -0.525, below -0.49; -0.5 * 0.95 would be above."""
    for negative, left_out in ((-0.49, 1), (-0.53, 0)):
        _, metrics = loss_of_scores([-0.5, negative], false_negatives="relative", false_margin=-0.05)
        assert metrics["masked_margin"] == left_out


def make_batch(B=B):
    random = np.random.default_rng(0)
    ids = random.integers(0, 12, (B, K)).astype(np.int32)
    query, document = (random.normal(size=shape).astype(np.float32) for shape in ((B, E), (B, K, E)))
    return query, document, ids, np.stack([ids[:, 0], np.roll(ids[:, 0], 1)], axis=1)


def by_numpy(query, document, ids, known, kind, margin, mean, sizes):
    """The losses [B] of both directions, and how many documents are left out [B], in float64, one row at a time."""

    def row(scores, positive, own):
        limit = scores[own] + margin * (abs(scores[own]) if kind == "relative" else 1)
        false = ~positive & (scores > limit)
        negatives = np.exp(scores[~positive & ~false] / 0.5).sum()
        counted = scores[positive] if mean else scores[own]
        return np.mean(np.log(np.exp(counted / 0.5) + negatives) - counted / 0.5), false.sum()

    total = np.zeros(len(query))
    for size in sizes or (query.shape[1],):
        cut = lambda x: x[..., :size] / (np.linalg.norm(x[..., :size], axis=-1, keepdims=True) if sizes else 1)  # noqa: B023, E731
        q, d = cut(query), cut(document)
        scores = q @ d.reshape(-1, size).T
        positive = (ids.reshape(1, -1, 1) == known[:, None]).any(axis=2)
        rows = [row(scores[b], positive[b], b * d.shape[1]) for b in range(len(q))]
        of_queries = (ids[:, :1, None] == known[None]).any(axis=2)
        columns = [row(q @ d[b, 0], of_queries[b], b) for b in range(len(q))]
        total += [(one[0] + other[0]) / 2 for one, other in zip(rows, columns)]
    return total, [count for _, count in rows]


@functools.partial(jax.jit, static_argnames=("kind", "margin", "mean", "sizes"))
def streaming(query, document, ids, known, kind, margin, mean, sizes):
    return in_batch_softmax(
        query,
        document,
        ids,
        None,
        temperature=0.5,
        symmetric=True,
        known=known,
        other_positives="mean" if mean else "mask",
        matryoshka=sizes,
        false_negatives=kind,
        false_margin=margin,
        block=5,
    )


OPTIONS = [("absolute", 0.3, False, ()), ("relative", -0.2, True, ()), ("relative", 0.1, False, (2, 5))]


@pytest.mark.parametrize("options", OPTIONS)
def test_losses_counts_and_gradients_are_those_of_numpy(options):
    query, document, *others = make_batch()
    loss, metrics = streaming(query, document, *others, *options)
    wide = [x.astype(np.float64) for x in (query, document)]
    expected, counts = by_numpy(*wide, *others, *options)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(metrics["masked_margin"], counts)
    assert 0 < np.mean(counts) < B * K / 2
    gradients = jax.grad(lambda q, d: streaming(q, d, *others, *options)[0].sum(), (0, 1))(query, document)
    assert_finite_differences(
        gradients, (query, document), lambda q, d: by_numpy(q, d, *others, *options)[0].sum(), 2e-4
    )


def test_the_same_on_any_mesh():
    def loss(scale, batch):
        query, *others = batch
        values, metrics = streaming(query * scale, *others, "relative", 0.1, True, (2, 5))
        return values.mean(), (values, metrics)

    assert_loss_same_on_any_mesh(loss, jnp.linspace(0.5, 1.5, E), make_batch(16))


def test_the_config_names_them():
    query, document, ids, _ = make_batch()
    fields = {"train.false_negatives": "relative", "train.false_margin": -0.2, "train.log_q": False}
    config = make_config("ict", **fields)
    loss = recipe_of(config).named_loss
    found, metrics = jax.jit(loss)(query, document, {"document_id": ids})
    options = dict(false_negatives="relative", false_margin=-0.2, temperature=config.train.temperature)
    expected, counts = in_batch_softmax(query, document, ids, None, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(metrics["masked_margin"], counts["masked_margin"])
