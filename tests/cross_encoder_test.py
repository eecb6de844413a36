"""The cross-encoder against numpy, its scores in other batches, and what it can start from."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.modules import spread
from support.tiny_pairs import CONFIG, IDS, TYPES, pairs, scores

from retrieval.common.errors import UserError
from retrieval.methods.reranker.model import CrossEncoder, relevance
from retrieval.models.architecture import PRE_NORM
from retrieval.models.text import Text
from retrieval.models.transformer import Transformer
from retrieval.models.warm_start import copy_encoder


@pytest.fixture(scope="module")
def model():
    return spread(CrossEncoder(CONFIG, 2, rngs=nnx.Rngs(0)))


def test_a_score_does_not_depend_on_the_batch(model):
    """Alone, among others, in another order, and packed behind another pair."""
    expected = np.asarray(scores(model, pairs()))
    assert np.ptp(expected) > 0.01
    for row in (0, 3):
        np.testing.assert_allclose(scores(model, pairs([row])), expected[row : row + 1], rtol=0, atol=1e-5)
    order = np.array([3, 0, 7, 5, 1, 2, 6, 4])
    np.testing.assert_allclose(scores(model, pairs(order)), expected[order], rtol=0, atol=1e-5)
    np.testing.assert_allclose(scores(model, pairs([1, 4], length=5)), expected[[1, 4]], rtol=0, atol=1e-5)
    packed = Text(
        *(jnp.asarray(np.concatenate([x[1, :4], x[4, :5]])[None]) for x in (IDS, TYPES)),
        segments_RL=jnp.array([[1] * 4 + [2] * 5]),
        positions_RL=jnp.array([[0, 1, 2, 3, 0, 1, 2, 3, 4]]),
        starts_GC=jnp.array([[0, 4]]),
    )
    np.testing.assert_allclose(scores(model, packed), expected[[1, 4]], rtol=0, atol=1e-5)


def test_pairs_of_which_a_model_is_sure_keep_their_order():
    """Two logits that are far apart: p(relevant) is 1 in float32."""
    apart_B = jnp.asarray([-20, -2, 0, 2, 16, 17, 18, 30])
    score_B = np.asarray(relevance(jnp.stack([-apart_B / 2, apart_B / 2], axis=-1)))
    assert (np.diff(score_B) > 0).all()
    np.testing.assert_allclose(score_B, -np.log1p(np.exp(-np.asarray(apart_B, np.float64))), rtol=1e-5)


def encoder(**sizes):
    return Transformer(dataclasses.replace(CONFIG, **sizes), rngs=nnx.Rngs(1))


def test_it_starts_from_the_encoder_of_another_model():
    """Which may have more positions."""
    model, source = CrossEncoder(CONFIG, 1, rngs=nnx.Rngs(0)), spread(encoder(max_length=12))
    pooler = jnp.copy(model.pooler.kernel[...])
    copy_encoder(source, model.encoder, "the reranker")
    np.testing.assert_array_equal(
        model.encoder(pairs(), dropout_key=None), source(pairs(), dropout_key=None), strict=True
    )
    assert model.encoder.position_embedding.embedding.shape == (10, 8)
    np.testing.assert_array_equal(model.pooler.kernel[...], pooler)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"max_length": 9}, r"position_embedding/embedding: \(9, 8\), needed \(10, 8\)"),
        ({"num_heads": 4}, "num_heads: 4, needed 2"),
        ({"architecture": PRE_NORM}, "embedding_norm/bias: missing, needed"),
    ],
)
def test_an_encoder_that_means_something_else_is_refused(sizes, message):
    model = CrossEncoder(CONFIG, 1, rngs=nnx.Rngs(0))
    before = jax.tree.map(jnp.copy, nnx.state(model))
    with pytest.raises(UserError, match=message):
        copy_encoder(encoder(**sizes), model.encoder, "the reranker")
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), before)
