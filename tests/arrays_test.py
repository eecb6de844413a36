"""Operations on arrays that every room uses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval.common.runtime.arrays import first_highest


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_the_first_of_the_highest_is_that_of_argmax(dtype):
    values = np.random.default_rng(0).integers(-3, 3, (7, 5, 11)).astype(dtype)  # many are equal
    assert (values == values.max(axis=-1, keepdims=True)).sum() > 7 * 5
    np.testing.assert_array_equal(jax.jit(first_highest)(values), values.argmax(axis=-1))


def test_the_first_of_the_highest_may_be_the_last_or_below_all_numbers():
    values = jnp.asarray([[0.0, 1, 2], [-jnp.inf] * 3, [-jnp.inf, -5, -jnp.inf]])
    assert first_highest(values).tolist() == [2, 0, 1]


def test_the_first_of_the_highest_has_no_gradient():
    assert not jax.grad(lambda x: (first_highest(x) * 1.0).sum())(jnp.ones((2, 3))).any()
