"""Matryoshka in the in-batch softmax, against one softmax per size, of embeddings cut and normalised in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.devices import assert_loss_same_on_any_mesh
from support.losses import in_batch_softmax
from support.modules import assert_finite_differences, products_of
from support.tiny import make_config

from retrieval.errors import UserError
from retrieval.models.text import Text
from retrieval.recipes.placement import bind, parameters_of
from retrieval.recipes.recipe import build_model, check_recipe, recipe_of

SIZES, WEIGHTS = (2, 3, 7), (0.5, 2.0, 1.0)


def make_batch(B=8, K=2, E=7):
    """Embeddings, ids of few documents, log Q, and known positives: the own one and another row's."""
    random = np.random.default_rng(0)
    ids = random.integers(0, 10, (B, K)).astype(np.int32)
    embeddings = [random.normal(size=shape).astype(np.float32) for shape in ((B, E), (B, K, E))]
    known = np.stack([ids[:, 0], np.roll(ids[:, 0], 1)], axis=1)
    return *embeddings, ids, random.normal(size=(B, K)).astype(np.float32), known


def of_one_size(query, document, ids, log_q, known, temperature, symmetric, mean):
    """The losses [B] of unit vectors, in float64; `mean` as of `other_positives`."""

    def cross_entropy(logits, positives, own):
        losses = []
        for b, (row, positive) in enumerate(zip(logits, positives)):
            negatives = np.exp(row[~positive]).sum()
            counted = row[positive] if mean else row[own[b] : own[b] + 1]
            losses.append((np.log(np.exp(counted) + negatives) - counted).mean())
        return np.array(losses)

    B, K, E = document.shape
    logits = query @ document.reshape(B * K, E).T / temperature - (0 if log_q is None else log_q.reshape(-1))
    positives = (ids.reshape(1, -1, 1) == known[:, None]).any(axis=2)
    loss = cross_entropy(logits, positives, np.arange(0, B * K, K))
    if symmetric:
        of_queries = (ids[:, :1, None] == known[None]).any(axis=2)
        loss = (loss + cross_entropy(document[:, 0] @ query.T / temperature, of_queries, np.arange(B))) / 2
    return loss


def of_sizes(query, document, *others, sizes=SIZES, weights=WEIGHTS, **options):
    """The weighted sum of the losses [B] of the sizes."""
    cut = lambda x, size: x[..., :size] / np.linalg.norm(x[..., :size], axis=-1, keepdims=True)  # noqa: E731
    losses = [of_one_size(cut(query, size), cut(document, size), *others, **options) for size in sizes]
    return sum(weight * loss for weight, loss in zip(weights, losses))


@functools.partial(jax.jit, static_argnames=("symmetric", "mean", "block"))
def streaming(query, document, ids, log_q, known, *, symmetric, mean, block=512):
    return in_batch_softmax(
        query,
        document,
        ids,
        log_q,
        temperature=0.3,
        symmetric=symmetric,
        known=known,
        other_positives="mean" if mean else "mask",
        matryoshka=SIZES,
        matryoshka_weights=WEIGHTS,
        block=block,
    )


def test_two_queries_and_two_sizes_by_hand():
    query, document = np.array([[1, 2, 2, 0], [0, 1, -1, 2.0]]), np.array([[2, 1, 0, 2], [1, 0, 2, 1.0]])

    def loss(query, document):
        ids = np.arange(2, dtype=np.int32)[:, None]
        return in_batch_softmax(query, document[:, None], ids, None, temperature=0.5, matryoshka=(2, 4))[0].mean()

    value, (of_query, of_document) = jax.value_and_grad(loss, argnums=(0, 1))(query, document)
    assert value == pytest.approx(0.819268 + 1.272910, abs=2e-6)
    expected = [[-0.030263, -0.120186, 0.135318, -0.053048], [0.009030, 0.018051, -0.175042, -0.096547]]
    np.testing.assert_allclose(of_query, expected, atol=1e-6)
    expected = [[-0.215249, 0.116303, -0.245161, 0.157097], [0.013968, -0.379163, 0.160584, -0.335136]]
    np.testing.assert_allclose(of_document, expected, atol=1e-6)


@pytest.mark.parametrize(("symmetric", "mean"), [(False, False), (True, False), (True, True)])
def test_it_is_the_sum_over_sizes_of_embeddings_cut_and_normalised(symmetric, mean):
    """The losses, and gradients by finite differences; in one block, and in blocks that do not divide the documents."""
    batch, options = make_batch(), dict(symmetric=symmetric, mean=mean)
    query, document, *others = batch
    by_numpy = lambda q, d: of_sizes(q, d, *others, temperature=0.3, **options)  # noqa: E731
    expected = by_numpy(query.astype(np.float64), document.astype(np.float64))
    for block in (512, 5):
        loss = lambda q, d: streaming(q, d, *others, block=block, **options)[0]  # noqa: B023, E731
        np.testing.assert_allclose(loss(query, document), expected, rtol=1e-5, atol=1e-5)
        gradients = jax.grad(lambda q, d: loss(q, d).sum(), argnums=(0, 1))(query, document)  # noqa: B023
        assert_finite_differences(gradients, (query, document), lambda q, d: by_numpy(q, d).sum(), 2e-4)


def test_all_dimensions_alone_are_the_plain_loss_of_cosines():
    """The hits too, which are of all dimensions whatever the sizes are."""
    query, document, ids, log_q, _ = make_batch()
    document[:, 0] += 0.7 * query
    unit = lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731

    def plain(query, document):
        return in_batch_softmax(unit(query), unit(document), ids, log_q, temperature=0.3, symmetric=True)

    def matryoshka(query, document, sizes):
        return in_batch_softmax(query, document, ids, log_q, temperature=0.3, symmetric=True, matryoshka=sizes)

    loss_B, metrics = matryoshka(query, document, (7,))
    np.testing.assert_allclose(loss_B, plain(query, document)[0], rtol=1e-5)
    gradients = jax.jit(jax.grad(lambda q, d: matryoshka(q, d, (7,))[0].sum(), (0, 1)))(query, document)
    expected = jax.jit(jax.grad(lambda q, d: plain(q, d)[0].sum(), (0, 1)))(query, document)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients, expected)
    hits = plain(query, document)[1]["recall@1"]
    np.testing.assert_array_equal(metrics["recall@1"], hits)
    np.testing.assert_array_equal(matryoshka(query, document, (1, 7))[1]["recall@1"], hits)
    assert 0 < hits.mean() < 1


def test_the_same_on_any_mesh():
    def loss(scale, batch):
        query, *others = batch
        values, metrics = streaming(query * scale, *others, symmetric=True, mean=True)
        return values.mean(), (values, metrics)

    assert_loss_same_on_any_mesh(loss, jnp.linspace(0.5, 1.5, 7), make_batch(B=16))


def test_sizes_cost_the_products_of_one():
    """The multiplications of all matrix products of the loss and its gradient: five sizes, and none."""
    query, document, ids, *_ = make_batch(B=16, K=1, E=24)

    def of_one(product):
        (summed, _), _ = product.params["dimension_numbers"]
        return product.outvars[0].aval.size * np.prod([product.invars[0].aval.shape[axis] for axis in summed])

    def multiplications(sizes):
        loss = lambda q, d: in_batch_softmax(q, d, ids, None, matryoshka=sizes)[0].sum()  # noqa: E731
        program = jax.make_jaxpr(jax.grad(loss, (0, 1)))(query, document)
        return sum(map(of_one, products_of(program)))

    # The scores twice, for the loss and for its gradient, then the gradients of queries and of documents.
    assert multiplications((2, 3, 8, 12, 24)) == multiplications(()) == 4 * 16 * 16 * 24


TOWERS = {"model.normalize": True, "train.matryoshka": (2, 8), "train.temperature": 0.05, "model.embed_dim": 8}


def of_towers(**changes):
    """The mean loss of two towers, the gradients of their parameters, and their embeddings of the batch."""
    random = np.random.default_rng(0)
    config = make_config("ict", **TOWERS | changes)
    model = build_model(config, 50)
    texts = [random.integers(1, 50, (8, 10), np.int32), random.integers(1, 50, (8, 1, 10), np.int32)]
    batch = {
        "query": texts[0],
        "document": texts[1],
        "document_id": np.arange(8, dtype=np.int32)[:, None],
        "log_q": np.zeros((8, 1)),
    }
    objective = recipe_of(config).objective(bind(model))
    batch = jax.tree.map(jnp.asarray, batch)
    loss = jax.jit(jax.value_and_grad(lambda params: objective(params, batch, jax.random.key(0))[0].mean()))
    return model, batch, loss(parameters_of(model))


def test_towers_are_trained_for_the_sizes_of_the_config_in_chunks_too():
    model, batch, (whole, gradients) = of_towers()
    rows = [batch["query"], batch["document"][:, 0]]
    query, document = nnx.jit(
        lambda model, query, document: (model.encode_queries(query, None), model.encode_documents(document, None))
    )(model, *(Text.from_ids(x, 0 * x) for x in rows))
    given = [np.asarray(x, np.float64) for x in (query, document[:, None])]
    ids = np.arange(8)[:, None]
    options = dict(temperature=0.05, symmetric=False, mean=False, sizes=(2, 8), weights=(1, 1))
    expected = of_sizes(*given, ids, None, ids, **options)
    assert whole == pytest.approx(expected.mean(), rel=1e-4)
    *_, (chunked, of_chunks) = of_towers(**{"train.chunk_size": 2})
    assert chunked == pytest.approx(float(whole), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), of_chunks, gradients)
    *_, (weighted, _) = of_towers(**{"train.matryoshka_weights": (3.0, 0.5)})
    options["weights"] = (3, 0.5)
    assert weighted == pytest.approx(of_sizes(*given, ids, None, ids, **options).mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train.matryoshka": (2, 16)},
            r"train\.matryoshka=\(2, 16\): embeddings have 8 dimensions: take .* at most 8",
        ),
        ({"train.matryoshka": (2, 4)}, r"add 8, or set config\.model\.truncate_dim=4"),
        ({"train.matryoshka": (4, 2, 8)}, r"sizes must ascend"),
        ({"train.matryoshka_weights": (1.0,)}, r"are weights of the 2 sizes .* give as many, or \(\) for 1 each"),
        ({"model.normalize": False}, r"compares cosines, .*: set config\.model\.normalize=True"),
    ],
)
def test_sizes_that_cannot_be_trained_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_recipe(make_config("ict", **TOWERS | changes))


def test_sizes_are_of_embeddings_that_are_cut():
    check_recipe(make_config("ict", **TOWERS | {"train.matryoshka": (2, 4), "model.truncate_dim": 4}))


@pytest.mark.parametrize("loss", ["multi_label_margin", "triplet", "multi_negative_nll"])
def test_other_losses_are_those_of_each_size_added_up(loss):
    """Of embeddings, and of scores: each size alone, as towers that are truncated to it have it."""

    def of(changes):
        config = make_config(
            "ict", **TOWERS | {"train.loss": loss, "train.temperature": 1.0, "train.log_q": False} | changes
        )
        config.data.negatives = 1
        recipe = recipe_of(config)
        recipe.check()
        return recipe.embedding_loss()

    query, document, ids, *_ = make_batch(E=8)
    batch = {"document_id": jnp.asarray(ids)}
    summed, _ = of({"train.matryoshka": (2, 8), "train.matryoshka_weights": (3.0, 0.5)})(query, document, batch)
    alone = of({"train.matryoshka": ()})
    expected = 0
    for size, weight in ((2, 3.0), (8, 0.5)):
        cut = (x[..., :size] / np.linalg.norm(x[..., :size], axis=-1, keepdims=True) for x in (query, document))
        expected += weight * alone(*cut, batch)[0]
    np.testing.assert_allclose(summed, expected, rtol=1e-5)
