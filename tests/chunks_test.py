"""Gradient caching: the embeddings and gradients of the whole batch, with the memory of a chunk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from retrieval.models import two_tower
from retrieval.models.text import Text
from retrieval.models.two_tower import TowerConfig
from retrieval.training.chunks import in_chunks
from retrieval.training.objectives.in_batch_softmax import InBatchSoftmax

SIZES = dict(vocab_size=50, num_layers=1, hidden_size=12, num_heads=3, mlp_size=20, max_length=16, dropout=0.1)
GRAPHDEF, PARAMS = nnx.split(two_tower.create(TowerConfig("transformer", SIZES, embed_dim=6), seed=0), nnx.Param)


class SmallBlocks(InBatchSoftmax):
    block = 32


def batch(rows=16, length=12):
    """Ids and document ids, some of them alike."""
    random = np.random.default_rng(0)
    real = np.arange(length) < random.integers(3, length, rows)[:, None]
    return (random.integers(1, 50, (rows, length)) * real).astype(np.int32), np.arange(rows, dtype=np.int32) // 2 * 2


def make_loss(size, key=None):
    """In-batch softmax of the towers, both on the same ids."""

    def loss(params, batch):
        ids, document_ids = batch
        model = nnx.merge(GRAPHDEF, params)
        text = Text.from_ids(ids, jnp.zeros_like(ids))
        queries = in_chunks(model.encode_query, text, key, size)
        documents = in_chunks(model.encode_document, text, key, size)
        batch = {"document_id": document_ids[:, None]}
        losses, _ = SmallBlocks(temperature=0.01, log_q=False)(queries, documents[:, None], batch)
        return losses.mean(), (queries, documents)

    return jax.value_and_grad(loss, has_aux=True)


def test_chunks_give_the_whole_batchs_loss_and_gradients():
    whole, chunked = (jax.jit(make_loss(size))(PARAMS, batch()) for size in (0, 4))
    for a, b in zip(jax.tree.leaves(chunked), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_forward_and_backward_share_a_chunks_own_dropout_mask():
    ids = np.tile(batch()[0][:1], (16, 1))
    _, (queries, _) = jax.jit(make_loss(2, jax.random.key(1)))(PARAMS, (ids, batch()[1]))[0]
    assert len(np.unique(np.asarray(queries), axis=0)) == 16

    loss = jax.jit(make_loss(4, jax.random.key(1)))

    def value(scale):
        return loss(jax.tree.map(lambda x: x * scale, PARAMS), batch())[0][0]

    # Were the masks of the second pass others, the gradient would not be that of the loss.
    expected = (value(1 + 1e-2) - value(1 - 1e-2)) / 2e-2
    gradient = loss(PARAMS, batch())[1]
    actual = sum(jnp.vdot(g, p) for g, p in zip(jax.tree.leaves(gradient), jax.tree.leaves(PARAMS)))
    np.testing.assert_allclose(actual, expected, rtol=2e-2)


@pytest.mark.long
def test_memory_grows_with_the_chunk_alone():
    def temporaries(rows, size):
        compiled = jax.jit(make_loss(size)).lower(PARAMS, batch(rows)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(512, 16) < temporaries(512, 0) / 8
    assert temporaries(512, 16) < 2 * temporaries(128, 16)
