"""The Transformer against BERT's forward pass written in numpy (which agrees with PyTorch's to 4e-6)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P
from support.modules import spread
from support.numpy_layers import attend, layers, mlp, norm, parameters

from retrieval.models.text import Text
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig

CONFIG = TransformerConfig(
    vocab_size=50, num_layers=2, hidden_size=12, num_heads=3, mlp_size=20, max_length=16, dropout=0.1
)
RANDOM = np.random.default_rng(0)


def batch(lengths, length):
    """Random ids and types, filler after each row's length."""
    ids, types = RANDOM.integers(0, 50, (len(lengths), length)), RANDOM.integers(0, 2, (len(lengths), length))
    real = np.arange(length) < np.array(lengths)[:, None]
    return np.where(real, ids, -1).astype(np.int32), (types * real).astype(np.int32)


def from_ids(ids, types):
    return Text.from_ids(jnp.asarray(ids), jnp.asarray(types))


@nnx.jit
def encode(model, text, key=None):
    return model(text, dropout_key=key)


@pytest.fixture(scope="module")
def model():
    return spread(Transformer(CONFIG, rngs=nnx.Rngs(0)))


def bert(p, ids, types):
    """Hidden states of one text without padding."""
    x = p["token_embedding"]["embedding"][ids] + p["type_embedding"]["embedding"][types]
    x = norm(x + p["position_embedding"]["embedding"][: len(ids)], p["embedding_norm"])
    for at in layers(p["layers"]):
        x = norm(x + attend(x, x, at["attention"], CONFIG.num_heads), at["attention_norm"])
        x = norm(x + mlp(x, at), at["mlp_norm"])
    return x


def test_hidden_states_are_those_of_bert(model):
    lengths = (16, 1, 7, 11)
    ids, types = batch(lengths, 16)
    hidden = encode(model, from_ids(ids, types))
    for row, n in enumerate(lengths):
        expected = bert(parameters(model), ids[row, :n], types[row, :n])
        np.testing.assert_allclose(hidden[row, :n], expected, rtol=0, atol=1e-5)


def test_what_stands_where_no_token_is_changes_no_bit(model):
    """And the token 0 is one like others: behind a text it counts."""
    ids, types = batch((5, 3), 7)
    text = from_ids(ids, types)
    real = np.asarray(text.segments_RL) > 0
    assert real.sum() == 8 and (ids[~real] == -1).all()
    hidden = np.asarray(encode(model, text))
    others = dataclasses.replace(text, ids_RL=jnp.where(text.segments_RL > 0, text.ids_RL, 7))
    np.testing.assert_array_equal(np.asarray(encode(model, others))[real], hidden[real])
    longer = np.where(np.arange(7) == 5, 0, ids)
    assert (np.abs(np.asarray(encode(model, from_ids(longer, types)) - hidden)[0, :5]) > 1e-4).any()


def test_a_row_of_padding_gives_no_nan(model):
    ids, types = batch((0, 4), 6)
    graphdef, params = nnx.split(model)

    def total(params):
        return nnx.merge(graphdef, params)(from_ids(ids, types), dropout_key=None).sum()

    for leaf in jax.tree.leaves(jax.jit(jax.value_and_grad(total))(params)):
        assert np.isfinite(leaf).all()


def test_parameters_start_like_berts():
    model = Transformer(dataclasses.replace(CONFIG, vocab_size=5000), rngs=nnx.Rngs(0))
    table = np.asarray(model.token_embedding.embedding[...])
    assert np.abs(table).max() < 0.04 + 1e-6
    assert table.std() == pytest.approx(0.02 * 0.8796, rel=0.01)  # a standard normal cut at two deviations: 0.8796
    assert not np.asarray(model.layers.mlp_in.bias[...]).any()


def test_memory_and_loop_settings_change_no_value(model):
    """Hidden states, and the gradients that dropout's masks are a part of."""
    text = from_ids(*batch((8, 6), 8))
    other = spread(Transformer(dataclasses.replace(CONFIG, remat="full", unroll=2), rngs=nnx.Rngs(0)))

    def gradient(model):
        graphdef, params = nnx.split(model)

        def loss(params):
            hidden = nnx.merge(graphdef, params)(text, dropout_key=jax.random.key(3))
            return jnp.where(text.segments_RL[:, :, None] != 0, jnp.sin(hidden), 0).sum()

        return jax.jit(jax.grad(loss))(params)

    for a, b in zip(jax.tree.leaves(gradient(other)), jax.tree.leaves(gradient(model)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_remat_saves_memory_however_far_the_loop_is_unrolled():
    text = from_ids(*batch((32,) * 8, 32))

    def temporary(remat):
        sizes = dict(num_layers=4, hidden_size=48, mlp_size=192, max_length=32, unroll=2)
        graphdef, params = nnx.split(Transformer(dataclasses.replace(CONFIG, remat=remat, **sizes), rngs=nnx.Rngs(0)))
        gradient = jax.grad(lambda params: nnx.merge(graphdef, params)(text, dropout_key=None).sum())
        return jax.jit(gradient).lower(params).compile().memory_analysis().temp_size_in_bytes

    assert temporary("full") < 0.8 * temporary("none")


def test_gradients_of_bfloat16_are_those_of_float32():
    """Those of biases are sums over 4,096 tokens, which bfloat16 itself would cut at 256 terms of a size."""
    text, readout = from_ids(*batch((64,) * 64, 64)), jnp.asarray(RANDOM.normal(1, 1, CONFIG.hidden_size))

    def gradient(dtype):
        config = dataclasses.replace(CONFIG, num_layers=1, max_length=64, dtype=dtype)
        graphdef, params = nnx.split(spread(Transformer(config, rngs=nnx.Rngs(0))))

        def loss(params):
            return (nnx.merge(graphdef, params)(text, dropout_key=None) @ readout).mean()

        gradients = nnx.to_pure_dict(jax.jit(jax.grad(loss))(params))
        del gradients["layers"]["attention"]["key"]["bias"]  # 0 whatever the text: it adds the same to all scores
        return gradients

    expected, half = gradient("float32"), gradient("bfloat16")
    for (path, wanted), found in zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(half), strict=True):
        assert np.linalg.norm(found - wanted) < 0.02 * np.linalg.norm(wanted), path


def test_each_device_computes_its_own_rows_and_masks_alone():
    """Right numbers do not show it: a sharding that was lost makes every device compute the whole batch."""
    graphdef, params = nnx.split(Transformer(dataclasses.replace(CONFIG, num_layers=1), rngs=nnx.Rngs(0)))
    ids = batch([16] * 16, 16)[0]

    def encode(params, ids):
        return nnx.merge(graphdef, params)(Text.from_ids(ids, jnp.zeros_like(ids)), dropout_key=jax.random.key(0))

    alone = jax.jit(encode).lower(params, ids).compile()
    mesh = jax.make_mesh((8,), ("data",))
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, P()), jax.device_put(ids, P("data"))
        shared = jax.jit(encode).lower(*placed).compile()
    assert shared.cost_analysis()["flops"] < alone.cost_analysis()["flops"] / 7
    assert shared.cost_analysis()["bytes accessed"] < alone.cost_analysis()["bytes accessed"] / 5
    assert not [line for line in shared.as_text().splitlines() if "all-gather(" in line or "all-reduce(" in line]
