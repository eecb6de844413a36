"""The in-batch softmax with all its options, against all scores at once in float64, by hand, and on any mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_loss_same_on_any_mesh
from support.modules import products_of
from support.tiny import make_config

from retrieval.common.errors import UserError
from retrieval.recipes.recipe import check_recipe, recipe_of
from retrieval.training.objectives.in_batch_softmax import InBatchSoftmax

B, K, E, H = 8, 3, 6, 4
PLAIN = dict(log_q=False, temperature=0.5)
COUNTS = ("ids", "margin", "guide")  # of what is left out


def make_batch(B=B, K=K):
    """Embeddings, and the fields of few documents, so that copies are in other rows, in other columns, and beside their
    own positive."""
    random = np.random.default_rng(0)
    ids = random.integers(0, 30, (B, K)).astype(np.int32)
    shapes = (B, E), (B, K, E), (B, 1 + K, H), (B, K)
    query, document, guide, log_q = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    guide /= np.linalg.norm(guide, axis=2, keepdims=True)
    known = np.stack([ids[:, 0], np.roll(ids[:, 0], 1), random.integers(0, 40, B)], axis=1).astype(np.int32)
    fields = {"document_id": ids, "log_q": log_q, "positive_ids": known, "guide": guide}
    return query, document, fields


def all_at_once(query, document, fields, loss):
    """The losses [B] of whole matrices of scores, recall@1 [B], and how many candidates are left out, each [B]."""
    B, K, _ = document.shape
    flat_ids, group, known = (
        fields["document_id"].reshape(-1),
        np.arange(B) // (B // loss.groups),
        fields["positive_ids"],
    )
    answers = (known[:, :, None] == flat_ids).any(axis=1)  # [B, N]: known positives
    # Of queries among documents, and of positives among queries: the groups of columns, whose own they are, who would
    # be a known positive, and the correction.
    log_q = fields["log_q"].reshape(-1) if loss.log_q else 0
    forward = np.repeat(group, K), np.arange(B * K)[None] == K * np.arange(B)[:, None], answers, log_q
    backward = group, np.eye(B, dtype=bool), answers[:, ::K].T, 0
    guide, mean = fields["guide"], loss.other_positives == "mean"

    def limit(own_B, rule, margin):
        return (own_B + margin * (jnp.abs(own_B) if rule == "relative" else 1))[:, None]

    def softmax(direction, scores, of_guide, own_B):
        columns, own, known, log_q = direction
        inside = group[:, None] == columns
        rest = inside & ~own & ~known
        false = guided = jnp.zeros_like(rest)
        if loss.false_negatives:
            false = rest & (scores > limit(own_B, loss.false_negatives, loss.false_margin))
        if loss.guide:
            of_own = limit((guide[:, 0] * guide[:, 1]).sum(axis=1), "absolute", loss.guide_margin)
            guided = rest & (of_guide > of_own) & ~false
        logits = scores / loss.temperature - log_q
        total_B1 = jnp.where(rest & ~false & ~guided, jnp.exp(logits), 0).sum(axis=1, keepdims=True)
        positive = inside & (own | known if mean else own)
        losses = jnp.where(positive, jnp.log(jnp.exp(logits) + total_B1) - logits, 0)
        hit_B = own_B > jnp.where(rest, scores, -jnp.inf).max(axis=1)
        counts = [mask.sum(axis=1) for mask in (inside & ~own & known, false, guided)]
        return losses.sum(axis=1) / positive.sum(axis=1), hit_B, counts

    total_B, sizes = 0, loss.matryoshka
    for size in sizes or (query.shape[1],):
        q, d = (x[..., :size] for x in (query, document))
        if sizes:
            q, d = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (q, d))
        own_B, all_d, all_guide = (q * d[:, 0]).sum(axis=1), d.reshape(B * K, -1), guide[:, 1:].reshape(B * K, -1)
        of_size, hit_B, counts = softmax(forward, q @ all_d.T, guide[:, 0] @ all_guide.T, own_B)
        if loss.symmetric:
            other, *_ = softmax(backward, d[:, 0] @ q.T, guide[:, 1] @ guide[:, 0].T, own_B)
            of_size = (of_size + other) / 2
        total_B += of_size
    return total_B, hit_B, counts


def reference(query, document, fields, loss):
    """Losses, hits and counts; and the gradients of the weighted sum of the losses."""
    with jax.enable_x64(True):
        fields = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in fields.items()}

        def value(q, d):
            loss_B, *others = all_at_once(q, d, fields, loss)
            return (loss_B * np.arange(1, len(query) + 1)).sum(), (loss_B, *others)

        wide = [jnp.asarray(x, jnp.float64) for x in (query, document)]
        (_, found), gradients = jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True))(*wide)
        return jax.tree.map(np.asarray, (*found, gradients))


def streaming(query, document, fields, loss):
    """The weighted sum of the losses; and the losses and metrics."""
    loss_B, metrics = loss(query, document, fields)
    return (loss_B * jnp.arange(1, len(query) + 1)).sum(), (loss_B, metrics)


ALL = dict(
    log_q=False,
    other_positives="mean",
    groups=2,
    matryoshka=(2, 6),
    false_negatives="absolute",
    false_margin=0.4,
    guide="a model",
    guide_margin=0.2,
)
CASES = [
    (dict(symmetric=True), 5),
    (dict(other_positives="mean", symmetric=True), 100),
    (dict(other_positives="mean", groups=4), 5),
    (dict(groups=8), 512),
    (dict(matryoshka=(2, 3, 6), symmetric=True), 5),
    (dict(false_negatives="absolute", false_margin=0.3, symmetric=True, log_q=False), 5),
    (dict(false_negatives="relative", false_margin=-0.2, other_positives="mean"), 512),
    (dict(false_negatives="relative", matryoshka=(2, 6)), 7),
    (dict(guide="a model", guide_margin=-0.1, symmetric=True), 512),
    (dict(guide="a model", guide_margin=0.5, matryoshka=(3, 6), groups=2), 5),
    (ALL, 7),
]


@pytest.mark.parametrize(
    ("options", "block"),
    [pytest.param(*c, marks=pytest.mark.long if i in (1, 2, 3, 5, 7, 8) else ()) for i, c in enumerate(CASES)],
)
def test_losses_metrics_and_gradients_are_those_of_all_scores_at_once(options, block, monkeypatch):
    monkeypatch.setattr(InBatchSoftmax, "block", block)
    query, document, fields = make_batch()
    loss = InBatchSoftmax(0.4, **options)
    expected, hits, counts, of_reference = reference(query, document, fields, loss)
    step = jax.jit(jax.value_and_grad(functools.partial(streaming, loss=loss), (0, 1), has_aux=True))
    (_, (loss_B, metrics)), gradients = step(query, document, fields)
    np.testing.assert_allclose(loss_B, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(metrics["recall@1"], hits)
    for found, wanted in zip(gradients, of_reference):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
    shown = {"ids": loss.other_positives == "mask", "margin": bool(loss.false_negatives), "guide": bool(loss.guide)}
    assert {name for name in COUNTS if f"masked_{name}" in metrics} == {name for name in COUNTS if shown[name]}
    for name, count_B in zip(COUNTS, counts):
        if shown[name]:
            np.testing.assert_array_equal(metrics[f"masked_{name}"], count_B)
            assert 0 < count_B.mean() < B * K / 2 or (name == "ids" and loss.groups == B)
    plain, *_ = reference(query, document, fields, InBatchSoftmax(0.4, log_q=loss.log_q))
    assert np.abs(loss_B - plain).max() > 0.01


def test_half_precision_ties_and_a_batch_without_a_list_of_positives():
    query, document, fields = make_batch()
    fields = {"document_id": fields["document_id"]}
    loss, half = jax.jit(InBatchSoftmax(**PLAIN)), [jnp.asarray(x, jnp.bfloat16) for x in (query, document)]
    loss_B, metrics = loss(*half, fields)
    own = fields | {"positive_ids": fields["document_id"][:, :1]}
    expected, hits = InBatchSoftmax(**PLAIN)(*(x.astype(jnp.float32) for x in half), own)
    assert loss_B.dtype == jnp.float32
    np.testing.assert_allclose(loss_B, expected, rtol=1e-6)
    np.testing.assert_array_equal(metrics["recall@1"], hits["recall@1"])
    np.testing.assert_array_equal(loss(0 * query, document, fields)[1]["recall@1"], 0)


@pytest.mark.parametrize("options", [ALL, pytest.param(dict(symmetric=True, log_q=True), marks=pytest.mark.long)])
def test_the_same_on_any_mesh(options, monkeypatch):
    monkeypatch.setattr(InBatchSoftmax, "block", 7)
    loss, names = InBatchSoftmax(0.5, **options), list(make_batch()[2])

    def scaled(scale, batch):
        query, document, *fields = batch
        value, others = streaming(query * scale, document, dict(zip(names, fields)), loss)
        return value / 1000, others

    query, document, fields = make_batch(16)
    assert_loss_same_on_any_mesh(scaled, jnp.linspace(0.5, 1.5, E), (query, document, *fields.values()))


def test_no_matrix_of_all_scores_is_held(monkeypatch):
    """1,024 x 1,024 scores would take 4 MB; a block of 32 takes 0.1, and there are a few of that size."""
    monkeypatch.setattr(InBatchSoftmax, "block", 32)
    query, document, fields = make_batch(1024, 1)
    loss = lambda q, d: InBatchSoftmax()(q, d, fields)[0].mean()  # noqa: E731
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(query, document).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1.5e6


def test_sizes_cost_the_products_of_one():
    """The multiplications of all matrix products of the loss and its gradient: five sizes, and none."""
    random = np.random.default_rng(0)
    query, document = random.normal(size=(16, 24)), random.normal(size=(16, 1, 24))
    fields = {"document_id": np.arange(16, dtype=np.int32)[:, None]}

    def of_one(product):
        (summed, _), _ = product.params["dimension_numbers"]
        return product.outvars[0].aval.size * np.prod([product.invars[0].aval.shape[axis] for axis in summed])

    def multiplications(sizes):
        loss = lambda q, d: InBatchSoftmax(log_q=False, matryoshka=sizes)(q, d, fields)[0].sum()  # noqa: E731
        return sum(map(of_one, products_of(jax.make_jaxpr(jax.grad(loss, (0, 1)))(query, document))))

    # The scores twice, for the loss and for its gradient, then the gradients of queries and of documents.
    assert multiplications((2, 3, 8, 12, 24)) == multiplications(()) == 4 * 16 * 16 * 24


def one_query(scores, **options):
    """The loss of one query: the positive's score is the first, all are cosines; its guide says the same."""
    scores = np.array(scores)
    query, document = np.array([[1.0, 0.0]]), np.stack([scores, np.sqrt(1 - scores**2)], axis=1)[None]
    fields = {"document_id": np.arange(len(scores), dtype=np.int32)[None]}
    fields["guide"] = np.concatenate([query[None], document], axis=1)
    (loss,), metrics = InBatchSoftmax(temperature=0.05, log_q=False, **options)(query, document, fields)
    return float(loss), {name: float(value[0]) for name, value in metrics.items()}


GUIDED, FALSE = {"guide": "a model"}, {"false_negatives": "absolute"}


@pytest.mark.parametrize(
    ("options", "loss", "left_out"),
    [
        ({}, 2.545032, {}),
        (FALSE, 1.313352, {"masked_margin": 1}),  # Qwen3-Embedding's margin of 0.1 drops 0.81
        (FALSE | {"false_margin": 0.0}, 0.000335, {"masked_margin": 2}),  # and 0.75
        (GUIDED | {"guide_margin": 0.1}, 1.313352, {"masked_guide": 1}),
        (GUIDED, 0.000335, {"masked_guide": 2}),
    ],
)
def test_one_query_by_hand(options, loss, left_out):
    found, metrics = one_query([0.70, 0.75, 0.81, 0.30], **options)
    assert found == pytest.approx(loss, abs=1e-5)
    assert metrics == {"recall@1": 0, "masked_ids": 0} | left_out


def test_the_loss_of_sentence_transformers():
    """MultipleNegativesRankingLoss of version 6.2 with a scale of 20, in float64, on these four triples."""
    texts = np.cos(np.arange(36) ** 2 + 1).reshape(3, 4, 3)
    texts /= np.linalg.norm(texts, axis=2, keepdims=True)
    fields = {"document_id": np.arange(8, dtype=np.int32).reshape(4, 2)}
    found, _ = InBatchSoftmax(1 / 20, log_q=False)(texts[0], np.stack(texts[1:], axis=1), fields)
    assert found.mean() == pytest.approx(24.216274, abs=1e-4)


def test_a_query_is_no_negative_of_itself_whatever_its_guide_says():
    """Its positive has the guide's highest score, so no margin would leave it out; one query alone has no negative."""
    query, fields = np.array([[0.6, 0.8]]), {"document_id": np.zeros((1, 1), np.int32), "guide": np.ones((1, 2, 1))}
    (loss,), metrics = InBatchSoftmax(log_q=False, symmetric=True, **GUIDED)(query, query[:, None], fields)
    assert loss == 0 and metrics["masked_guide"] == 0


def test_the_config_has_the_options():
    options = ALL | {"temperature": 0.7}
    config = make_config("ict", **{f"train.{name}": value for name, value in options.items()})
    assert recipe_of(config).named_loss == InBatchSoftmax(**options)


def test_groups_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"config\.train\.groups=3 does not divide .*batch_size=16: take 2 or 4"):
        check_recipe(make_config("ict", **{"train.temperature": 1.0, "train.groups": 3}))
