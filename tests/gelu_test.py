"""GELU against SciPy's error function in float64."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erf

from retrieval.models.gelu import gelu

X = np.concatenate([np.linspace(-12, 12, 4801), [-1e4, 1e4, -0.0]])


def expected(x):
    """GELU and its derivative."""
    below = 0.5 * (1 + erf(x / np.sqrt(2)))
    return x * below, below + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def test_value_and_slope_equal_scipy():
    value, slope = expected(X)
    x = jnp.asarray(X, jnp.float32)
    np.testing.assert_allclose(gelu(x), value, rtol=2e-7, atol=6e-7)
    np.testing.assert_allclose(jax.vmap(jax.grad(gelu))(x), slope, rtol=2e-7, atol=6e-7)
