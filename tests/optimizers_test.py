"""Schedules and optimizers of optax: against numpy in float64, on meshes, and Adam as it was to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.tiny_towers import LORA, VOCABULARY, begin, make_batch, make_config, run

from retrieval.common.errors import UserError
from retrieval.recipes.parameters import is_stacked, make_mesh, parameters_of
from retrieval.recipes.recipe import abstract_model
from retrieval.runs.fitting import refresh_kind, training_length
from retrieval.runs.weights import train_state
from retrieval.training import optimizer, sharding
from retrieval.training.checkpoint import Checkpointer
from retrieval.training.optimizer import make_optimizer
from retrieval.training.schedules import SCHEDULES

TIED = {"model.tied": True}
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


def test_adam_is_what_it_was_to_the_last_bit():
    """The chain before there were others: clipping, Adam, decay, and a rate between the corners."""

    def rate(count):
        return jnp.interp(count, np.array([0, 0.15 * 10, 10]), np.array([0, 3e-4, 0]))

    adam = [optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-6), optax.add_decayed_weights(0.01, optimizer.decayed)]
    then = optax.chain(optax.clip_by_global_norm(1.0), optax.chain(*adam, optax.scale_by_learning_rate(rate)))
    now = make_optimizer(learning_rate=3e-4, steps=10, warmup_ratio=0.15, weight_decay=0.01, clip_norm=1.0)
    random = np.random.default_rng(0)
    params, gradients = tree(random, (2, 5, 3), (3, 4)), [tree(random, (2, 5, 3), (3, 4)) for _ in range(8)]
    jax.tree.map(np.testing.assert_array_equal, updated(now, params, gradients), updated(then, params, gradients))
    assert jax.tree.structure(now.init(params)) == jax.tree.structure(then.init(params))


def orthogonal(matrix):
    """Five iterations of Newton and Schulz with Jordan's coefficients, of a matrix with fewer rows than columns."""
    x = matrix / (np.linalg.norm(matrix) + 1e-8)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def test_muon_is_muon_on_matrices_of_layers_and_adam_elsewhere():
    """Nesterov's momentum as Adam's bias correction has it; the update is 0.2 sqrt(longer side) as long."""
    random = np.random.default_rng(0)
    params, gradients = tree(random, (2, 3, 5), (3, 4)), [tree(random, (2, 3, 5), (3, 4)) for _ in range(4)]
    settings = dict(**FULL, weight_decay=0.3)
    found = updated(make_optimizer(**settings, name="muon", is_stacked=is_stacked), params, gradients)
    adam = updated(make_optimizer(**settings), params, gradients)
    np.testing.assert_array_equal(found["head"]["kernel"], adam["head"]["kernel"])
    np.testing.assert_array_equal(found["layers"]["bias"], adam["layers"]["bias"])
    for layer, matrix in enumerate(params["layers"]["kernel"].astype(np.float64)):
        momentum = 0.0
        for t, gradient in enumerate(gradients, 1):
            gradient = gradient["layers"]["kernel"][layer]
            momentum = 0.95 * momentum + 0.05 * gradient
            ahead = 0.95 * momentum / (1 - 0.95 ** (t + 1)) + 0.05 * gradient / (1 - 0.95**t)
            matrix = matrix - 0.01 * (0.2 * np.sqrt(5) * orthogonal(ahead) + 0.3 * matrix)
        np.testing.assert_allclose(found["layers"]["kernel"][layer], matrix, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [LORA, pytest.param(TIED, marks=pytest.mark.long)])
def test_training_by_muon_is_the_same_on_every_mesh(changes):
    changes = {"train.optimizer": "muon", "train.learning_rate": 1e-3, **changes}
    (expected, losses), (state, actual) = (run(make_config(fsdp, **changes)) for fsdp in (1, 4))
    np.testing.assert_allclose(actual, losses, rtol=0, atol=1e-5)
    for (path, a), b in zip(jax.tree.leaves_with_path(state.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5, err_msg=str(path))
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim == 3]
    assert moments and all(leaf.addressable_shards[0].data.size * 4 == leaf.size for leaf in moments if leaf.size >= 64)


class Nothing:
    """The position of batches that are a function of the step."""

    def save(self, folder):
        pass


def trained(config, state, seeds):
    step = train_state.make_step(config, abstract_model(config, VOCABULARY))
    for seed in seeds:
        batch = jax.device_put(make_batch(config, seed), sharding.batch_sharding(make_mesh(config)))
        state, metrics = step(state, batch)
        jax.block_until_ready(metrics)
    return state


@pytest.mark.long
def test_a_resumed_run_of_muon_is_bitwise_the_same(tmp_path):
    """In the middle of an update of two batches."""
    changes = {
        "train.optimizer": "muon",
        "train.schedule": "cosine",
        "train.warmup_ratio": 0.5,
        "train.accumulation": 2,
    }
    config = make_config(4, **TIED, **changes, **{"train.parameters": "bfloat16"})
    mesh, state = begin(config)
    checkpointer = Checkpointer(tmp_path / "checkpoints")
    with jax.set_mesh(mesh):
        begun = trained(config, state, range(3))
        checkpointer.save(3, begun.saved(), Nothing())
        checkpointer.wait()
        whole = trained(config, begun, range(3, 6))
        resumed = trained(config, begin(config)[1].restored(checkpointer, step=3), range(3, 6))
    checkpointer.close()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(whole), jax.device_get(resumed))


def test_muon_without_a_matrix_is_refused():
    params = parameters_of(abstract_model(make_config(**{"model.encoder": "bow_mlp", **TIED}), VOCABULARY))
    with pytest.raises(UserError, match=r"none is trained here: set config\.train\.optimizer=adam"):
        optimizer.check_matrices("muon", params, is_stacked)
    optimizer.check_matrices("adam", params, is_stacked)
