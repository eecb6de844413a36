"""Two towers: pooling, projection, tying, packing, and starting from a pre-trained encoder."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from retrieval.errors import UserError
from retrieval.models import two_tower
from retrieval.models.text import Text
from retrieval.models.transformer import Transformer, TransformerConfig
from retrieval.models.two_tower import TowerConfig

SIZES = dict(vocab_size=50, num_layers=1, hidden_size=12, num_heads=3, mlp_size=20, max_length=16)
CONFIG = TowerConfig("transformer", SIZES, embed_dim=6)
LENGTHS = (5, 9, 3, 7, 4, 2, 8, 6)
RANDOM = np.random.default_rng(0)
IDS = (RANDOM.integers(1, 50, (8, 9)) * (np.arange(9) < np.array(LENGTHS)[:, None])).astype(np.int32)
TYPES = (RANDOM.integers(0, 2, (8, 9)) * (IDS != 0)).astype(np.int32)


def text():
    return Text.from_ids(jnp.asarray(IDS), jnp.asarray(TYPES))


@nnx.jit
def documents(model, text, key=None):
    return model.encode_documents(text, key)


@nnx.jit
def queries(model, text, key=None):
    return model.encode_queries(text, key)


def same_parameters(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def packed(groups, length):
    """The texts of IDS in rows as `groups` lists them, e.g. [[[1, 0]], [[2, 3]]]: texts 1 and 0 share a row."""
    shape = len(groups), len(groups[0]), length
    arrays = [np.zeros(shape, np.int32) for _ in range(4)]
    starts = np.zeros((len(groups), len(IDS) // len(groups)), np.int32)
    for group, rows in enumerate(groups):
        first_text = group * starts.shape[1]
        for row, members in enumerate(rows):
            offset = 0
            for b in members:
                at = (group, row, slice(offset, offset + LENGTHS[b]))
                for array, values in zip(arrays, (IDS[b], TYPES[b], np.full(9, b - first_text + 1), np.arange(9))):
                    array[at] = values[: LENGTHS[b]]
                starts[group, b - first_text] = row * length + offset
                offset += LENGTHS[b]
    return Text.from_groups(*map(jnp.asarray, arrays), jnp.asarray(starts))


def test_a_layer_norm_behind_the_projection():
    tower = two_tower.create(dataclasses.replace(CONFIG, embed_norm=True), seed=0).query_tower
    tower.norm.scale[...], tower.norm.bias[...] = RANDOM.normal(size=(2, 6))
    with_norm = tower(text(), dropout_key=None)
    tower.head = tower.head[:1]
    plain = np.asarray(tower(text(), dropout_key=None))
    tower = two_tower.create(dataclasses.replace(CONFIG, embed_norm=True), seed=0).query_tower
    centred = plain - plain.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(tower(text(), dropout_key=None), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(with_norm, expected)  # scale and bias count, too
    assert not hasattr(two_tower.create(CONFIG, seed=0).query_tower, "norm")


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_embedding_is_the_projection_of_the_pooled_hidden_state(pooling):
    model = two_tower.create(dataclasses.replace(CONFIG, pooling=pooling), seed=0)
    tower = model.document_tower
    tower.projection.bias[...] = jnp.linspace(-1, 1, 6)
    hidden = np.asarray(tower.encoder(text(), dropout_key=None))
    kernel, bias = np.asarray(tower.projection.kernel[...]), np.asarray(tower.projection.bias[...])
    embedding = documents(model, text())
    assert embedding.dtype == jnp.float32
    for b, length in enumerate(LENGTHS):
        pooled = hidden[b, 0] if pooling == "cls" else hidden[b, :length].mean(axis=0)
        np.testing.assert_allclose(embedding[b], pooled @ kernel + bias, atol=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_packed_texts_have_the_same_embeddings(pooling):
    model = two_tower.create(dataclasses.replace(CONFIG, pooling=pooling), seed=0)
    groups = [[[3, 0], [], [2, 1]], [[5, 7], [4], [6]]]
    np.testing.assert_allclose(documents(model, packed(groups, length=14)), documents(model, text()), atol=1e-5)


def test_normalized_embeddings_have_length_one_and_the_same_direction():
    plain, unit = (documents(two_tower.create(dataclasses.replace(CONFIG, normalize=n), 0), text()) for n in (0, 1))
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)


def test_towers_are_apart_or_one():
    apart = two_tower.create(CONFIG, seed=0)
    tied = two_tower.create(dataclasses.replace(CONFIG, tied=True), seed=0)
    assert not same_parameters(nnx.state(apart.query_tower), nnx.state(apart.document_tower))
    assert np.abs(queries(apart, text()) - documents(apart, text())).max() > 1e-3
    assert not hasattr(tied, "document_tower")
    np.testing.assert_array_equal(queries(tied, text()), documents(tied, text()))
    count = [sum(leaf.size for leaf in jax.tree.leaves(nnx.state(m))) for m in (apart, tied)]
    assert count[0] == 2 * count[1]


def test_a_tied_model_drops_out_queries_and_documents_apart():
    model = two_tower.create(dataclasses.replace(CONFIG, tied=True), seed=0)
    key = jax.random.key(0)
    assert np.abs(queries(model, text(), key) - documents(model, text(), key)).max() > 1e-3
    np.testing.assert_array_equal(queries(model, text(), key), queries(model, text(), key))


def test_every_parameter_is_a_param_and_learns():
    """Nothing but parameters is in the state, so `nnx.split(model, nnx.Param)` leaves nothing over."""
    model = two_tower.create(CONFIG, seed=0)
    graphdef, params = nnx.split(model, nnx.Param)

    def loss(params):
        m = nnx.merge(graphdef, params)
        return jnp.sum(jnp.sin(m.encode_queries(text(), None) * m.encode_documents(text(), None)))

    grads = jax.jit(jax.grad(loss))(params)
    still = {"/".join(map(str, path)) for path, grad in nnx.to_flat_state(grads) if not np.any(grad[...])}
    # A softmax does not change when all its logits grow alike, and the key's bias does just that.
    assert all(path.endswith("attention/key/bias") for path in still), still


def test_bow_mlp_goes_through_the_same_door():
    sizes = dict(vocab_size=50, hidden_size=12, mlp_size=7)
    model = two_tower.create(TowerConfig("bow_mlp", sizes, embed_dim=6), seed=0)
    assert queries(model, text()).shape == documents(model, text(), jax.random.key(0)).shape == (8, 6)
    with pytest.raises(UserError, match="query_tower: a BoW-MLP cannot start from a pre-trained Transformer"):
        two_tower.init_encoders(model, Transformer(TransformerConfig(**SIZES), rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("tied", [False, True])
def test_a_pretrained_encoder_is_copied_to_both_towers(tied):
    model = two_tower.create(dataclasses.replace(CONFIG, tied=tied), seed=0)
    encoder = Transformer(TransformerConfig(**SIZES), rngs=nnx.Rngs(5))
    projection = jnp.copy(model.query_tower.projection.kernel[...])
    two_tower.init_encoders(model, encoder)
    towers = [model.query_tower] if tied else [model.query_tower, model.document_tower]
    for tower in towers:
        assert same_parameters(nnx.state(tower.encoder), nnx.state(encoder))
    np.testing.assert_array_equal(model.query_tower.projection.kernel[...], projection)
    leaves = [leaf for m in (model, encoder) for leaf in jax.tree.leaves(nnx.state(m))]
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
    towers[0].encoder.token_embedding.embedding[...] += 1
    assert not same_parameters(nnx.state(towers[0].encoder), nnx.state(encoder))
    jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)(nnx.state(model))


def test_an_unfit_encoder_is_refused_with_its_differences():
    model = two_tower.create(CONFIG, seed=0)
    encoder = Transformer(TransformerConfig(**(SIZES | {"vocab_size": 40, "num_layers": 2})), rngs=nnx.Rngs(0))
    before = nnx.state(model)
    with pytest.raises(UserError) as error:
        two_tower.init_encoders(model, encoder)
    message = str(error.value)
    assert "does not fit query_tower" in message
    assert "token_embedding/embedding: (40, 12), needed (50, 12)" in message
    assert "layers/attention/key/kernel: (2, 12, 12), needed (1, 12, 12)" in message and "more" in message
    assert "position_embedding" not in message
    assert same_parameters(nnx.state(model), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder": "transformers"}, "unknown encoder 'transformers': did you mean transformer"),
        ({"pooling": "max"}, "unknown pooling 'max'.*known: cls, mean"),
        (
            {"sizes": SIZES | {"num_layer": 3}},
            "unknown size of encoder 'transformer' 'num_layer': did you mean num_layers",
        ),
        (
            {"sizes": {"vocab_size": 5, "num_layers": 1}},
            "'transformer': set its hidden_size, num_heads, mlp_size, max_l",
        ),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        two_tower.create(dataclasses.replace(CONFIG, **change), seed=0)
