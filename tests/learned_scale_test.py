"""A learned temperature: its limit, and how towers have it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.tiny import CHEAP, make_config

from retrieval.common.errors import UserError
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.recipe import build_model, check_recipe, recipe_of
from retrieval.training.optimizer import decayed

FIELDS = {**CHEAP, "model.learned_scale": 14.25, "model.normalize": True, "train.temperature": 1.0}


def test_it_is_at_most_100_and_comes_back():
    model = build_model(make_config("ict", **FIELDS), 50)

    def scale(log, sign):
        return sign * bind(model)(parameters_of(model) | {"log_scale": log}).scale

    gradient = jax.grad(scale)
    assert scale(jnp.log(200.0), 1) == pytest.approx(100)
    assert gradient(jnp.log(200.0), -1) == 0  # a step against it would make the scale more
    assert gradient(jnp.log(200.0), 1) == pytest.approx(100)
    assert gradient(jnp.log(50.0), -1) == pytest.approx(-50)


def objective(**changes):
    config = make_config("ict", **FIELDS | changes)
    check_recipe(config)
    model = build_model(config, 50)
    random = np.random.default_rng(0)
    batch = {
        "query": random.integers(1, 50, (8, 10), np.int32),
        "document": random.integers(1, 50, (8, 1, 10), np.int32),
        "document_id": np.arange(8, dtype=np.int32)[:, None],
        "log_q": np.zeros((8, 1), np.float32),
    }
    of_batch, key = recipe_of(config).objective(bind(model)), jax.random.key(0)
    params = parameters_of(model)

    def loss(params, batch):
        loss_B, metrics = of_batch(params, batch, key)
        return loss_B.mean(), metrics

    return params, jax.jit(jax.value_and_grad(loss, has_aux=True))(params, jax.tree.map(jnp.asarray, batch))


def test_towers_train_it_and_begin_with_that_of_the_config():
    params, ((value, metrics), gradients) = objective()
    assert metrics["scale"][0] == pytest.approx(14.25) and gradients["log_scale"] != 0
    assert not decayed(params)["log_scale"]
    _, ((plain, _), others) = objective(**{"model.learned_scale": 0.0, "train.temperature": 1 / 14.25})
    assert value == pytest.approx(float(plain), rel=1e-5)
    assert gradients.keys() - others.keys() == {"log_scale"}


def test_towers_start_from_those_without_it_and_the_other_way_round():
    with_scale, plain = (make_config("ict", **FIELDS | {"model.learned_scale": value}) for value in (5.0, 0.0))
    for config, other in ((with_scale, plain), (plain, with_scale)):
        other.seed = 1
        model, trained = build_model(config, 50), build_model(other, 50)
        recipe_of(config).start_from(model, trained)
        ours, theirs = parameters_of(model), parameters_of(trained)
        jax.tree.map(np.testing.assert_array_equal, ours["query_tower"], theirs["query_tower"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.temperature": 0.05}, r"is in place of config\.train\.temperature=0\.05: set one of them back"),
        ({"train.loss": "multi_label_margin"}, r"multi_label_margin learns no scale: .*train\.loss=in_batch_softmax"),
    ],
)
def test_what_would_not_learn_it_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        objective(**changes)
