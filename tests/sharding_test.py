"""The mesh: a training run is the same however devices share batches and parameters, and they share what they should."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from configs import ict_bfs_wlp
from retrieval.errors import UserError
from retrieval.stages import model as models
from retrieval.stages import train
from retrieval.training import sharding
from retrieval.training.checkpoint import Checkpointer

VOCABULARY = 50
SIZES = dict(num_layers=2, hidden_size=16, num_heads=2, mlp_size=32, embed_dim=8, dropout=0.1, dtype="float32")


def make_config(fsdp=1, **changes):
    config = ict_bfs_wlp.get_config()
    config.model.update(SIZES)
    config.data.update(query_length=8, document_length=12)
    config.train.update(batch_size=16, chunk_size=8, steps=4, learning_rate=1e-2, warmup_ratio=0.0, clip_norm=0.1)
    config.mesh.update(fsdp=fsdp, replicate_below=64)
    config.update_from_flattened_dict(changes)
    return config


def make_batch(config, seed):
    random = np.random.default_rng(seed)
    B, Q, D = config.train.batch_size, config.data.query_length, config.data.document_length
    if models.is_mlm(config):
        positions = random.integers(0, D, (B, 2))
        labels, weights = random.integers(5, VOCABULARY, (B, 2)), np.ones((B, 2), np.float32)
        return {"text": _ids(random, B, D), "positions": positions, "labels": labels, "weights": weights}
    query, document = _ids(random, B, Q), _ids(random, B, 1, D)
    return {
        "query": query, "query_types": np.zeros_like(query), "document": document,
        "document_types": np.zeros_like(document), "document_id": random.integers(0, 10, (B, 1)),
        "log_q": random.normal(size=(B, 1)).astype(np.float32),
    }  # fmt: skip


def _ids(random, *shape):
    return random.integers(1, VOCABULARY, shape) * (np.arange(shape[-1]) < random.integers(3, 9, (*shape[:-1], 1)))


def run(config, steps=3, state=None):
    """Trains `steps` steps, from `state` where it is given; returns the last state and the losses."""
    mesh = models.make_mesh(config)
    if state is None:
        state = train.initial_state(config, VOCABULARY, train.abstract_state(config, VOCABULARY, mesh))
    with jax.set_mesh(mesh):
        step, losses = train.make_step(config, VOCABULARY), []
        for seed in range(steps):
            batch = jax.device_put(make_batch(config, seed), sharding.batch_sharding(mesh))
            state, metrics = step(state, batch)
            losses.append(float(jax.block_until_ready(metrics)["loss"]))
    return state, losses


MODELS = {
    "towers": {},
    "tied": {"model.tied": True, "model.pooling": "mean", "model.remat": "none", "train.symmetric": True},
    "bow": {"model.encoder": "bow_mlp"},
    "mlm": {"data.rates.ict": 0.0, "data.rates.bfs": 0.0, "data.rates.wlp": 0.0, "data.rates.mlm": 1.0},
}


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_training_is_the_same_on_every_mesh(changes):
    expected, losses = run(make_config(**changes))
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(expected))
    for fsdp in (2, 4, 8):
        state, actual = run(make_config(fsdp, **changes))
        np.testing.assert_allclose(actual, losses, rtol=0, atol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), state.params, expected.params)
        print(
            fsdp, sum(not x.sharding.is_fully_replicated for x in jax.tree.leaves(state)), len(jax.tree.leaves(state))
        )
