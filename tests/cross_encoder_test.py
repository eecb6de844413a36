"""The cross-encoder against numpy, its scores in other batches, and what it can start from."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.modules import spread
from support.tiny_pairs import CONFIG, IDS, TYPES, pairs, scores

from retrieval.errors import UserError
from retrieval.methods.reranker.model import CrossEncoder, relevance
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.text import Text
from retrieval.models.transformer import Transformer, TransformerConfig
from retrieval.models.two_tower import TowerConfig, create
from retrieval.models.warm_start import copy_encoder


@pytest.fixture(scope="module", params=[1, 2])
def model(request):
    return spread(CrossEncoder(CONFIG, request.param, rngs=nnx.Rngs(0)))


def test_logits_are_berts_pooler_and_linear_layer(model):
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    cls = np.asarray(model.encoder(pairs(), dropout_key=None)[:, 0], np.float64)
    pooled = np.tanh(cls @ p["pooler"]["kernel"] + p["pooler"]["bias"])
    logits = pooled @ p["classifier"]["kernel"] + p["classifier"]["bias"]
    np.testing.assert_allclose(model(pairs(), None), logits, atol=1e-5)
    exponentials = np.exp(logits)
    expected = np.log(exponentials[:, 1] / exponentials.sum(axis=1)) if model.classes == 2 else logits[:, 0]
    np.testing.assert_allclose(scores(model, pairs()), expected, atol=1e-5)


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


def test_a_score_depends_on_the_token_types(model):
    swapped = Text.from_ids(jnp.asarray(IDS), jnp.asarray(np.where(IDS, 1 - TYPES, 0)))
    assert np.abs(scores(model, swapped) - scores(model, pairs())).max() > 0.01


def test_dropout_needs_a_key(model):
    logits = [model(pairs(), key) for key in (None, None, jax.random.key(0), jax.random.key(1))]
    np.testing.assert_array_equal(logits[0], logits[1])
    assert np.abs(logits[2] - logits[3]).max() > 0.01


def test_classes_are_one_or_two():
    with pytest.raises(UserError, match="3 classes"):
        CrossEncoder(CONFIG, 3, rngs=nnx.Rngs(0))


def encoder_of(kind, **sizes):
    """An encoder of another model."""
    config = dataclasses.asdict(CONFIG) | sizes
    if kind == "tower":
        return create(TowerConfig("transformer", config, embed_dim=4, tied=True), seed=1).query_tower.encoder
    if kind == "mlm":
        return MaskedLanguageModel(TransformerConfig(**config), rngs=nnx.Rngs(1)).encoder
    return Transformer(TransformerConfig(**config), rngs=nnx.Rngs(1))


@pytest.mark.parametrize("kind", ["tower", "mlm", "encoder"])
def test_it_starts_from_the_encoder_of_another_model(kind):
    """Which may have more positions."""
    model, source = CrossEncoder(CONFIG, 1, rngs=nnx.Rngs(0)), spread(encoder_of(kind, max_length=12))
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
        ({"vocab_size": 31}, r"token_embedding/embedding: \(31, 8\), needed \(30, 8\)"),
        ({"num_heads": 4}, "num_heads: 4, needed 2"),
        ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon: 1e-05, needed 1e-12"),
        ({"pre_norm": True}, "embedding_norm/bias: missing, needed"),
    ],
)
def test_an_encoder_that_means_something_else_is_refused(sizes, message):
    model = CrossEncoder(CONFIG, 1, rngs=nnx.Rngs(0))
    before = jax.tree.map(jnp.copy, nnx.state(model))
    with pytest.raises(UserError, match=message):
        copy_encoder(encoder_of("encoder", **sizes), model.encoder, "the reranker")
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), before)


def test_the_same_seed_gives_the_same_parameters():
    models = [CrossEncoder(CONFIG, 2, rngs=nnx.Rngs(seed)) for seed in (3, 3, 4)]
    leaves = [jax.tree.leaves(nnx.state(model)) for model in models]
    assert all(np.array_equal(a, b) for a, b in zip(*leaves[:2]))
    assert not all(np.array_equal(a, b) for a, b in zip(*leaves[1:]))
