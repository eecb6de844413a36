"""LayerNorm against its definition in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from retrieval.models.norms import LayerNorm

SIZE, EPSILON = 768, 1e-12
RANDOM = np.random.default_rng(0)
SCALE, BIAS = RANDOM.normal(1, 0.1, SIZE), RANDOM.normal(0, 0.1, SIZE)


def rows(mean=0.0, first=None):
    """Four rows of deviation 1."""
    x = RANDOM.normal(mean, 1, (4, SIZE))
    if first is not None:
        x[:, 0] = first
    return x


def norm():
    graphdef, state = nnx.split(LayerNorm(SIZE, epsilon=EPSILON, rngs=nnx.Rngs(0)))
    nnx.replace_by_pure_dict(state, {"scale": jnp.float32(SCALE), "bias": jnp.float32(BIAS)})
    return nnx.merge(graphdef, state)


def defined(x, scale, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON) * scale + bias


def gradients_in_float64(x, readout):
    with jax.enable_x64(True):
        values = (jnp.asarray(value, jnp.float64) for value in (x, SCALE, BIAS))
        return [np.asarray(g) for g in jax.grad(lambda *x: (defined(*x) * readout).sum(), (0, 1, 2))(*values)]


@pytest.mark.parametrize(
    ("x", "tolerance"),
    [
        pytest.param(rows(), 1e-5, id="usual"),
        pytest.param(rows(mean=1000), 2e-4, id="a large mean, of which float32 keeps four digits behind the point"),
        pytest.param(rows(first=1000), 1e-5, id="a first value far from all others"),
    ],
)
def test_values_and_gradients_are_those_of_float64(x, tolerance):
    layer, readout = norm(), RANDOM.normal(size=x.shape)
    x32 = jnp.asarray(x, jnp.float32)
    np.testing.assert_allclose(nnx.jit(layer)(x32), defined(x, SCALE, BIAS), rtol=0, atol=10 * tolerance)

    graphdef, state = nnx.split(layer)

    def loss(state, x):
        return (nnx.merge(graphdef, state)(x) * jnp.asarray(readout, jnp.float32)).sum()

    of_parameters, of_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(state, x32)
    found = of_x, of_parameters["scale"][...], of_parameters["bias"][...]
    for ours, theirs in zip(found, gradients_in_float64(x, readout), strict=True):
        assert np.linalg.norm(ours - theirs) <= tolerance * np.linalg.norm(theirs)


def test_a_row_of_one_value_is_the_bias():
    for value in (0.0, 0.1, 1e4):
        np.testing.assert_array_equal(norm()(jnp.full((2, SIZE), value)), np.float32(np.stack([BIAS, BIAS])))


def test_bfloat16_is_read_and_float32_comes_out():
    x = jnp.asarray(rows(), jnp.bfloat16)
    y, pull = jax.vjp(norm(), x)
    assert y.dtype == jnp.float32 and pull(y)[0].dtype == jnp.bfloat16
    np.testing.assert_allclose(y, defined(np.asarray(x, np.float64), SCALE, BIAS), rtol=0, atol=1e-5)
