"""The schedule at its corners, the mask on real parameters, and updates against AdamW written in numpy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from retrieval.models import two_tower
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.transformer_config import TransformerConfig
from retrieval.training.optimizer import accumulated, decayed, make_optimizer, with_masters
from retrieval.training.schedules import begin_second

SIZES = dict(vocab_size=50, num_layers=1, hidden_size=12, num_heads=3, mlp_size=20, max_length=16)


def updates(optimizer, state, count):
    params, found, update_of = {"kernel": jnp.ones(3)}, [], jax.jit(optimizer.update)
    for grad in np.random.default_rng(0).normal(size=(count, 3)):
        update, state = update_of({"kernel": jnp.float32(grad)}, state, params)
        found.append(update["kernel"])
    return np.stack(found)


def test_a_second_phase_has_its_rate_and_the_steps_that_are_left():
    settings = dict(warmup_ratio=0.2, weight_decay=0.3, clip_norm=1.0)

    def optimizer(rate, steps, **second):
        return accumulated(make_optimizer(learning_rate=rate, steps=steps, **settings, **second), 2)

    whole = optimizer(0.1, 10, second_rate=0.03)
    params = {"kernel": jnp.ones(3)}
    begun = whole.init(params)
    for state, same in ((begun, optimizer(0.1, 10)), (begin_second(begun, jnp.int32(4)), optimizer(0.03, 6))):
        expected = updates(same, same.init(params), 14)
        np.testing.assert_allclose(updates(whole, state, 14), expected, rtol=1e-6, atol=1e-9)


def models():
    yield two_tower.create(two_tower.TowerConfig("transformer", SIZES, embed_dim=6), seed=0)
    yield two_tower.create(two_tower.TowerConfig("bow_mlp", dict(vocab_size=9, hidden_size=4, mlp_size=3), 6), seed=0)
    yield MaskedLanguageModel(TransformerConfig(**SIZES), rngs=nnx.Rngs(0))


@pytest.mark.parametrize("as_params", [lambda state: state, nnx.to_pure_dict])
def test_only_matrices_and_embeddings_decay(as_params):
    for model in models():
        params = as_params(nnx.state(model, nnx.Param))
        marks = dict(jax.tree_util.tree_leaves_with_path(decayed(params)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            # In these models just the vectors are biases and scales; parameters of layers have one more axis.
            assert marks[path] == (leaf.ndim - ("layers" in str(path)) == 2), path
        assert set(marks.values()) == {True, False}


def adamw(param, grads, rates, decay, b1=0.9, b2=0.999, eps=1e-6):
    """Loshchilov & Hutter 2019, algorithm 2, in float64."""
    param, m, v = np.array(param, np.float64), 0.0, 0.0
    for t, (grad, rate) in enumerate(zip(grads, rates), 1):
        m, v = b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad**2
        param = param - rate * (m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * param)
    return param


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_updates_are_those_of_adamw(clip_norm):
    random = np.random.default_rng(0)
    params = {"layer": {"kernel": random.normal(size=(3, 2)), "bias": random.normal(size=2)}}
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    optimizer = make_optimizer(learning_rate=0.1, steps=10, warmup_ratio=0.2, weight_decay=0.3, clip_norm=clip_norm)
    state, current, seen = optimizer.init(params), params, []
    for step in range(4):
        kernel, bias = random.normal(size=(3, 2)) * (step + 0.2), random.normal(size=2) * (step + 0.2)
        grads = {"layer": {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}}
        updates, state = optimizer.update(grads, state, current)
        current = optax.apply_updates(current, updates)
        norm = math.sqrt((kernel**2).sum() + (bias**2).sum())
        scale = 1 if clip_norm is None else min(1, clip_norm / norm)
        seen.append({"kernel": kernel * scale, "bias": bias * scale})
    rates = [0, 0.05, 0.1, 0.0875]
    for name, decay in (("kernel", 0.3), ("bias", 0)):
        expected = adamw(params["layer"][name], [grads[name] for grads in seen], rates, decay)
        np.testing.assert_allclose(current["layer"][name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clips_parts", [False, True])
def test_updates_of_several_batches_are_those_of_adamw(clips_parts):
    """RepBERT's code clips `.grad` after each batch: what it has so far, and the new part with it."""
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=5).astype(np.float32), random.normal(size=(6, 5)).astype(np.float32)
    optimizer = make_optimizer(learning_rate=0.1, steps=10, warmup_ratio=0, clip_norm=1.0, epsilon=1e-4)
    optimizer = accumulated(optimizer, 2, 1.0 if clips_parts else None)
    params, state, seen, total = {"kernel": jnp.asarray(start)}, None, [], np.zeros(5)
    for number, gradient in enumerate(gradients):
        state = state or optimizer.init(params)
        updates, state = jax.jit(optimizer.update)({"kernel": jnp.asarray(gradient)}, state, params)
        params = optax.apply_updates(params, updates)
        total = total + gradient / 2
        if clips_parts or number % 2:
            total = total * min(1, 1 / np.linalg.norm(total))
        if number % 2:
            seen, total = [*seen, total], np.zeros(5)
            expected = adamw(start, seen, [0.1, 0.09, 0.08], 0, eps=1e-4)
        np.testing.assert_allclose(params["kernel"], expected if seen else start, rtol=1e-5, atol=1e-6)


def test_small_updates_of_bfloat16_add_up_in_float32():
    """Each of these is less than half a step of bfloat16 from 1, and would be rounded away."""
    start = np.ones(3, np.float32)
    optimizer = with_masters(make_optimizer(learning_rate=1e-3, steps=100, warmup_ratio=0, epsilon=1e-6))
    params = {"kernel": jnp.asarray(start, jnp.bfloat16), "bias": jnp.asarray(start)}
    state, gradient = optimizer.init(params), np.array([1.0, -1.0, 0.5], np.float32)
    for _ in range(20):
        given = {"kernel": jnp.asarray(gradient, jnp.bfloat16), "bias": jnp.asarray(gradient)}
        updates, state = optimizer.update(given, state, params)
        params = optax.apply_updates(params, updates)
    expected = adamw(start, [gradient] * 20, 1e-3 * (1 - np.arange(20) / 100), 0)
    for name in params:
        np.testing.assert_allclose(state.params[name], expected, rtol=1e-6)
        np.testing.assert_array_equal(params[name], state.params[name].astype(params[name].dtype))
    assert params["kernel"].dtype == jnp.bfloat16 and abs(expected - 1).min() > 0.01


def lamb(param, grads, rate, decay, limit, b1=0.9, b2=0.999, eps=1e-6):
    """You et al. 2020, algorithm 2, with phi(z) = min(z, limit), in float64."""
    param, m, v = np.array(param, np.float64), 0.0, 0.0
    for t, grad in enumerate(grads, 1):
        m, v = b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad**2
        update = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * param
        param = param - rate * min(np.linalg.norm(param), limit) * update / np.linalg.norm(update)
    return param


@pytest.mark.parametrize("limit", [None, 2.0])
def test_lamb_takes_no_parameter_for_longer_than_its_limit(limit):
    """One layer is shorter than the limit, one is longer; stacked, each has its own length."""
    random = np.random.default_rng(0)
    kernel = random.normal(size=(2, 3, 2)) * np.array([0.2, 5])[:, None, None]
    params = {"layers": {"kernel": jnp.asarray(kernel, jnp.float32)}}
    settings = dict(learning_rate=0.01, steps=10**9, warmup_ratio=0.0, weight_decay=0.3, name="lamb")
    optimizer = make_optimizer(**settings, lamb_norm_limit=limit, is_stacked=lambda path: True)
    state, grads = optimizer.init(params), random.normal(size=(4, 2, 3, 2))
    for grad in grads:
        updates, state = optimizer.update({"layers": {"kernel": jnp.asarray(grad, jnp.float32)}}, state, params)
        params = optax.apply_updates(params, updates)
    for layer, lengths in enumerate(([0, 1], [5, 20])):
        assert lengths[0] < np.linalg.norm(kernel[layer]) < lengths[1]
        expected = lamb(kernel[layer], grads[:, layer], 0.01, 0.3, limit or math.inf)
        np.testing.assert_allclose(params["layers"]["kernel"][layer], expected, rtol=1e-5)
