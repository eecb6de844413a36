"""Schedules and optimizers of optax: against numpy in float64, on meshes, and Adam as it was to the last bit."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support.tiny_towers import make_config

from retrieval.common.errors import UserError
from retrieval.models import two_tower
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.transformer_config import TransformerConfig
from retrieval.runs.fitting import refresh_kind, training_length
from retrieval.training.optimizer import accumulated, decayed, make_optimizer
from retrieval.training.schedules import SCHEDULES, begin_second

TIED = {"model.tied": True}
SIZES = dict(vocab_size=50, num_layers=1, hidden_size=12, num_heads=3, mlp_size=20, max_length=16)
FULL = dict(learning_rate=0.01, steps=10**9, warmup_ratio=0.0)  # the highest rate, from the first update on


def of_wsd(count, steps, warmup, decay):
    return np.where(count < steps - decay, 1.0, (steps - count) / decay)


AFTER_WARMUP = {
    "linear": lambda count, steps, warmup, decay: (steps - count) / (steps - warmup),
    "cosine": lambda count, steps, warmup, decay: (1 + np.cos(np.pi * (count - warmup) / (steps - warmup))) / 2,
    "wsd": of_wsd,
    "constant": lambda count, steps, warmup, decay: np.ones(len(count)),
}


@pytest.mark.parametrize("warmup", [0.0, 0.15])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_their_formulas(name, warmup):
    """Also where the warm-up ends between two updates, and behind the last one."""
    count, steps = np.arange(14, dtype=np.float64), 10
    inside = np.minimum(count, steps)
    expected = AFTER_WARMUP[name](inside, steps, warmup * steps, 1)
    expected = np.where(count < warmup * steps, count / max(warmup * steps, 1e-9), expected)
    found = jax.jit(jax.vmap(SCHEDULES[name](0.2, steps, warmup * steps)))(jnp.arange(14))
    np.testing.assert_allclose(found, 0.2 * expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.schedule": "cosine", "train.warmup_ratio": 1.0}, r"ratio=1 leaves too few steps for that: lower it"),
        ({"train.schedule": "wsd", "train.warmup_ratio": 0.95}, r"=wsd falls .*ratio=0\.95 leaves too few steps"),
        (
            {"train.schedule": "wsd", "mine.turn_rate": 1e-3, "mine.patience": 1, "mine.refresh_every": 1},
            "set that to linear",
        ),
    ],
)
def test_schedules_without_room_are_refused(changes, message):
    config = make_config(**changes)
    with pytest.raises(UserError, match=message):
        training_length.check(config.train, (), (), 0)
        refresh_kind.check(config)


def test_a_constant_rate_may_be_planned_for_fewer_steps():
    changes = {"train.schedule_steps": 2, "train.schedule": "constant"}
    training_length.check(make_config(**changes).train, (), (), 0)
    with pytest.raises(UserError, match="a learning rate of 0 from there on"):
        training_length.check(make_config(**changes | {"train.schedule": "linear"}).train, (), (), 0)


def updated(tx, params, gradients):
    """The parameters after updates by some gradients."""
    state, update = tx.init(params), jax.jit(tx.update)
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def tree(random, *shapes):
    """Kernels and biases of a layer for each shape, in float32."""
    return {
        name: {"kernel": random.normal(size=shape).astype(np.float32), "bias": random.normal(size=4).astype(np.float32)}
        for name, shape in zip(("layers", "head"), shapes)
    }


def updates_of(optimizer, state, count):
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
        expected = updates_of(same, same.init(params), 14)
        np.testing.assert_allclose(updates_of(whole, state, 14), expected, rtol=1e-6, atol=1e-9)


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
    params, gradients = tree(random, (3, 4)), [tree(random, (3, 4)) for _ in range(4)]
    tx = make_optimizer(learning_rate=0.1, steps=10, warmup_ratio=0.2, weight_decay=0.3, clip_norm=clip_norm)
    found = updated(tx, params, gradients)
    norms = [math.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(each))) for each in gradients]
    for name, decay in (("kernel", 0.3), ("bias", 0)):
        seen = [g["layers"][name] * min(1, (clip_norm or math.inf) / norm) for g, norm in zip(gradients, norms)]
        expected = adamw(params["layers"][name], seen, [0, 0.05, 0.1, 0.0875], decay)
        np.testing.assert_allclose(found["layers"][name], expected, rtol=1e-5, atol=1e-6)


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
    kernel = (random.normal(size=(2, 3, 2)) * np.array([0.2, 5])[:, None, None]).astype(np.float32)
    grads = random.normal(size=(4, 2, 3, 2)).astype(np.float32)
    settings = dict(**FULL, weight_decay=0.3, name="lamb", lamb_norm_limit=limit, is_stacked=lambda path: True)
    found = updated(
        make_optimizer(**settings), {"layers": {"kernel": kernel}}, [{"layers": {"kernel": g}} for g in grads]
    )
    for layer, lengths in enumerate(([0, 1], [5, 20])):
        assert lengths[0] < np.linalg.norm(kernel[layer]) < lengths[1]
        expected = lamb(kernel[layer], grads[:, layer], 0.01, 0.3, limit or math.inf)
        np.testing.assert_allclose(found["layers"]["kernel"][layer], expected, rtol=1e-5)
