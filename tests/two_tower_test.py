"""Two towers: pooling, projection, packing, and starting from a pre-trained encoder."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from retrieval.models import two_tower
from retrieval.models.text import Text
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig
from retrieval.models.two_tower import BowConfig, BowMlp, TowerConfig

SIZES = dict(vocab_size=50, num_layers=1, hidden_size=12, num_heads=3, mlp_size=20, max_length=16)
CONFIG = TowerConfig("transformer", SIZES, embed_dim=6)
LENGTHS = (5, 9, 3, 7, 4, 2, 8, 6)
RANDOM = np.random.default_rng(0)
IDS = np.where(np.arange(9) < np.array(LENGTHS)[:, None], RANDOM.integers(0, 50, (8, 9)), -1).astype(np.int32)
TYPES = (RANDOM.integers(0, 2, (8, 9)) * (IDS >= 0)).astype(np.int32)


def text():
    return Text.from_ids(jnp.asarray(IDS), jnp.asarray(TYPES))


@nnx.jit
def documents(model, text, key=None):
    return model.encode_document(text, key)


def same_parameters(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_a_pretrained_encoder_is_copied_to_both_towers():
    model = two_tower.create(CONFIG, seed=0)
    encoder = Transformer(TransformerConfig(**SIZES), rngs=nnx.Rngs(5))
    projection = jnp.copy(model.query_tower.projection.kernel[...])
    two_tower.init_encoders(model, encoder)
    towers = [model.query_tower, model.document_tower]
    for tower in towers:
        assert same_parameters(nnx.state(tower.encoder), nnx.state(encoder))
    np.testing.assert_array_equal(model.query_tower.projection.kernel[...], projection)
    leaves = [leaf for m in (model, encoder) for leaf in jax.tree.leaves(nnx.state(m))]
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
    towers[0].encoder.token_embedding.embedding[...] += 1
    assert not same_parameters(nnx.state(towers[0].encoder), nnx.state(encoder))
    jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)(nnx.state(model))


@pytest.mark.parametrize("normalize", [False, True])
def test_an_embedding_is_truncated_before_it_is_normalised(normalize):
    model = two_tower.create(dataclasses.replace(CONFIG, normalize=normalize), seed=0)
    whole, model.truncate_dim = np.asarray(documents(model, text())), 4
    beginning = whole[:, :4] / (np.linalg.norm(whole[:, :4], axis=1, keepdims=True) if normalize else 1)
    np.testing.assert_allclose(documents(model, text()), beginning, atol=1e-6)


def test_each_side_is_pooled_from_its_own_place():
    whole = two_tower.create(dataclasses.replace(CONFIG, embed_dim=0, tied=True), seed=0)
    parts = two_tower.create(dataclasses.replace(CONFIG, embed_dim=0, tied=True, pool_from=(1, 0)), seed=0)
    assert whole.is_one and not parts.is_one
    hidden = whole.query_tower.encoder(text(), dropout_key=None)
    np.testing.assert_allclose(parts.encode_query(text(), None), hidden[:, 1], atol=1e-6)
    np.testing.assert_allclose(parts.encode_document(text(), None), hidden[:, 0], atol=1e-6)


def test_the_embedding_of_a_bow_mlp_is_an_mlp_of_the_mean_token():
    model = BowMlp(BowConfig(vocab_size=50, hidden_size=6, mlp_size=5), 4, rngs=nnx.Rngs(0))
    model.hidden.bias[...], model.output.bias[...] = jnp.linspace(-1, 1, 5), jnp.linspace(1, 2, 4)
    p = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model)))
    for row, embedding in zip(IDS, model(text(), dropout_key=None)):
        mean = p["token_embedding"]["embedding"][row[row >= 0]].mean(axis=0)
        hidden = np.tanh(mean @ p["hidden"]["kernel"] + p["hidden"]["bias"])
        np.testing.assert_allclose(embedding, hidden @ p["output"]["kernel"] + p["output"]["bias"], atol=1e-6)
