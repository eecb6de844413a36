"""The regulariser that spreads embeddings, against all pairs in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_same_on_any_mesh
from support.tiny import CHEAP, make_config

from retrieval.errors import UserError
from retrieval.recipes.placement import bind, parameters_of
from retrieval.recipes.recipe import build_model, check_recipe, recipe_of
from retrieval.training.spread_out import moments, spread_out


def test_three_directions_by_hand():
    first, second = moments(jnp.array([[1, 0], [0.6, 0.8], [8, 6.0]]))  # lengths do not count
    assert first**2 == pytest.approx(0.618844, abs=1e-6)
    assert second - 1 / 2 == pytest.approx(0.140533, abs=1e-6)


def of_pairs(sides, of_square, of_mean):
    total = 0
    for x in sides:
        x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
        cosines = (x @ x.T)[~np.eye(len(x), dtype=bool)]
        total += of_mean * cosines.mean() ** 2 + of_square * jax.nn.relu((cosines**2).mean() - 1 / x.shape[1])
    return total / len(sides)


def test_the_value_and_its_gradients_are_those_of_all_pairs():
    random = np.random.default_rng(0)
    sides = tuple(random.normal(size=(16, 5)).astype(np.float32) + shift for shift in (1, 0))
    loss = lambda params, sides: spread_out(tuple(x * params for x in sides), 2.0, 0.5)  # noqa: E731
    step = lambda params, sides: jax.value_and_grad(loss, argnums=1)(params, sides)  # noqa: E731
    value, gradients = assert_same_on_any_mesh(step, jnp.ones(5), sides)
    with jax.enable_x64(True):
        wide = tuple(jnp.asarray(x, jnp.float64) for x in sides)
        expected, of_sides = jax.tree.map(np.asarray, jax.value_and_grad(of_pairs)(wide, 2.0, 0.5))
    assert value == pytest.approx(float(expected), rel=1e-5) and value > 0.05
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradients, of_sides)


def test_towers_are_trained_with_it():
    random = np.random.default_rng(0)
    batch = {
        "query": random.integers(1, 50, (8, 10), np.int32),
        "document": random.integers(1, 50, (8, 1, 10), np.int32),
        "document_id": np.arange(8, dtype=np.int32)[:, None],
        "log_q": np.zeros((8, 1), np.float32),
    }

    batch = jax.tree.map(jnp.asarray, batch)

    def loss(**weights):
        config = make_config("ict", **CHEAP | weights)
        model = build_model(config, 50)
        return jax.jit(recipe_of(config).objective(bind(model)))(parameters_of(model), batch, jax.random.key(0))

    (plain, _), (spread, metrics) = loss(), loss(**{"train.spread_out": 3.0, "train.spread_out_mean": 1.0})
    np.testing.assert_allclose(spread - plain, metrics["spread_out"], rtol=1e-3)
    assert metrics["spread_out"][0] > 0.01
    with pytest.raises(UserError, match=r"train\.spread_out=3.*does not read it"):
        check_recipe(make_config("mlm", **{"train.spread_out": 3.0}))
