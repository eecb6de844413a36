"""SPLADE: activations, regularizers and the model, against plain forms and the numbers of the papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from retrieval.methods.splade.activations import activations
from retrieval.methods.splade.model import Splade
from retrieval.methods.splade.recipe import flops, l1, strength
from retrieval.methods.splade.term_encoder import as_matrix, greatest
from retrieval.models.text import Text
from retrieval.models.transformer_config import TransformerConfig

LOGITS = np.array([[[1, -2, 0.5], [3, 0, -1], [9, 9, 9]]], np.float32)
COUNTED = np.array([[True, True, False]])
CONFIG = TransformerConfig(
    vocab_size=20, num_layers=1, hidden_size=8, num_heads=2, mlp_size=12, max_length=6, dropout=0.0
)


def test_a_worked_example():
    """The highest logit of a token counts, padding does not; the gradient goes to its place alone."""

    def of(hidden_BLH):
        return activations(jnp.asarray(hidden_BLH), COUNTED, jnp.eye(3), jnp.zeros(3))

    np.testing.assert_allclose(of(LOGITS), [[1.386294, 0, 0.405465]], atol=1e-6)
    gradient_BLH = jax.grad(lambda hidden_BLH: of(hidden_BLH)[0, 0])(LOGITS)
    np.testing.assert_allclose(gradient_BLH[0], [[0, 0, 0], [0.25, 0, 0], [0, 0, 0]], atol=1e-6)
    matrix = as_matrix(np.asarray(greatest(of(LOGITS), 3)), 3)
    np.testing.assert_array_equal(np.rint(100 * matrix.toarray()), [[139, 0, 41]])


@pytest.mark.parametrize("block", [3, pytest.param(64, marks=pytest.mark.long)])
def test_blocks_change_nothing(block):
    """Values and gradients of blocks of any size are those of all logits at once; a text of padding is all zeros."""
    random = np.random.default_rng(0)
    hidden_BLH, table_VH, bias_V, direction_BV = (
        random.normal(size=shape).astype(np.float32) for shape in ((4, 11, 6), (20, 6), (20,), (4, 20))
    )
    counted_BL = random.random((4, 11)) > 0.3
    counted_BL[2] = False

    def whole(hidden_BLH, table_VH, bias_V):
        logit_BLV = jnp.einsum("blh,vh->blv", hidden_BLH, table_VH) + bias_V
        weight_BV = jnp.log1p(jax.nn.relu(jnp.where(counted_BL[:, :, None], logit_BLV, -jnp.inf).max(axis=1)))
        return (weight_BV * direction_BV).sum()

    def in_blocks(hidden_BLH, table_VH, bias_V):
        return (activations(hidden_BLH, counted_BL, table_VH, bias_V, block) * direction_BV).sum()

    given = hidden_BLH, table_VH, bias_V
    for ours, theirs in zip(*(jax.tree.leaves(jax.value_and_grad(f, (0, 1, 2))(*given)) for f in (in_blocks, whole))):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert not np.any(activations(hidden_BLH, counted_BL, table_VH, bias_V)[2])


def test_regularizers_are_of_the_global_batch():
    """The mean of what two devices would get of their own rows is 4, not 2."""
    weight_BV = jnp.array([[1.0, 0], [3, 0], [0, 2], [0, 2]])
    assert float(flops(weight_BV)) == 2 and float(l1(weight_BV)) == 2
    np.testing.assert_allclose(jax.grad(flops)(weight_BV), np.full((4, 2), 0.5))
    assert [float(strength(jnp.int32(step), 4)) for step in (0, 1, 3, 9)] == [1 / 16, 1 / 4, 1, 1]
    assert float(strength(jnp.int32(0), 0)) == 1


def test_queries_without_an_encoder_weigh_each_token_once():
    model = Splade(CONFIG, "idf", rngs=nnx.Rngs(0))
    model.idf[...] = jnp.arange(20.0) - 5
    text = Text.from_ids(jnp.array([[7, 7, 9, 2, -1, -1], [-1] * 6]), jnp.zeros((2, 6), jnp.int32))
    found_BV = model.encode_query(text, None)
    expected_BV = np.zeros((2, 20))
    expected_BV[0, [7, 9]] = 2, 4
    np.testing.assert_array_equal(found_BV, expected_BV)


def test_the_greatest_weights_are_kept():
    weight_BV = jnp.array([[0, 0.004, 3, 1, 2], [0, 0, 0, 0, 0.5]])
    matrix = as_matrix(np.asarray(greatest(weight_BV, 2)), 5)
    np.testing.assert_array_equal(matrix.toarray(), [[0, 0, 3, 0, 2], [0, 0, 0, 0, 0.5]])
