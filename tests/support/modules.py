"""Modules with parameters that all matter, texts of one a row, gradients against differences, products of a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from retrieval.models.text import Text


def spread(module, size=0.5, seed=1):
    """The module with parameters that are all far from 0 and 1, biases too."""
    random = np.random.default_rng(seed)
    state = nnx.state(module, nnx.Param)
    nnx.update(module, jax.tree.map(lambda x: x + jnp.asarray(random.normal(0, size, x.shape), jnp.float32), state))
    return module


def one_text_per_row(ids):
    return Text.from_ids(jnp.asarray(ids), jnp.zeros_like(ids))


def assert_finite_differences(grads, arrays, value_of, atol):
    """Gradients are those of `value_of(*arrays)`, which computes in float64."""
    wide = [array.astype(np.float64) for array in arrays]
    for array, grad in zip(wide, grads):
        for index in np.ndindex(array.shape):
            values = []
            for step in (1e-5, -1e-5):
                array[index] += step
                values.append(value_of(*wide))
                array[index] -= step
            assert grad[index] == pytest.approx((values[0] - values[1]) / 2e-5, abs=atol)


def products_of(jaxpr):
    """The equations of all products of a program, whatever calls them."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for value in equation.params.values():
            yield from products_of(value) if hasattr(value, "eqns") else ()
