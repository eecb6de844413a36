"""Matryoshka: towers and losses of several sizes of embeddings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.tiny import CHEAP, make_config

from retrieval.common.errors import UserError
from retrieval.models.text import Text
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.recipe import build_model, check_recipe, recipe_of
from retrieval.training.objectives.in_batch_softmax import InBatchSoftmax


def make_batch(B=8, K=2, E=7):
    """Embeddings, ids of few documents, log Q, and known positives: the own one and another row's."""
    random = np.random.default_rng(0)
    ids = random.integers(0, 10, (B, K)).astype(np.int32)
    embeddings = [random.normal(size=shape).astype(np.float32) for shape in ((B, E), (B, K, E))]
    known = np.stack([ids[:, 0], np.roll(ids[:, 0], 1)], axis=1)
    return *embeddings, ids, random.normal(size=(B, K)).astype(np.float32), known


TOWERS = CHEAP | {"model.normalize": True, "train.matryoshka": (2, 8), "train.temperature": 0.05, "model.embed_dim": 8}


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
        lambda model, query, document: (model.encode_query(query, None), model.encode_document(document, None))
    )(model, *(Text.from_ids(x, 0 * x) for x in rows))

    loss = InBatchSoftmax(0.05, log_q=False, matryoshka=(2, 8))
    expected = jax.jit(loss)(query, document[:, None], {"document_id": jnp.arange(8)[:, None]})[0].mean()
    assert whole == pytest.approx(float(expected), rel=1e-4)
    *_, (chunked, of_chunks) = of_towers(**{"train.chunk_size": 2})
    assert chunked == pytest.approx(float(whole), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), of_chunks, gradients)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.matryoshka": (2, 16)}, r"train\.matryoshka=\(2, 16\): sizes must ascend.* all 8 dim.*: end with 8$"),
        ({"train.matryoshka": (2, 4)}, r"end with 8, or set config\.model\.truncate_dim=4"),
        ({"train.matryoshka": (4, 2, 8)}, r"sizes must ascend.*: end with 8$"),
        ({"model.normalize": False}, r"compares cosines: set config\.model\.normalize=True"),
    ],
)
def test_sizes_that_cannot_be_trained_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_recipe(make_config("ict", **TOWERS | changes))


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
    summed, _ = jax.jit(of({"train.matryoshka": (2, 8)}))(query, document, batch)
    alone = jax.jit(of({"train.matryoshka": ()}))
    expected = 0
    for size in (2, 8):
        cut = (x[..., :size] / np.linalg.norm(x[..., :size], axis=-1, keepdims=True) for x in (query, document))
        expected += alone(*cut, batch)[0]
    np.testing.assert_allclose(summed, expected, rtol=1e-5)
