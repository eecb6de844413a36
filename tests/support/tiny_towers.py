"""Tiny towers on any mesh, with batches and steps of training, without a run."""

import jax
import numpy as np

from configs import ict_bfs_wlp
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import abstract_model
from retrieval.runs.weights import initial_parameters, train_state
from retrieval.training import sharding

VOCABULARY = 50
SIZES = dict(num_layers=2, hidden_size=16, num_heads=2, mlp_size=32, embed_dim=8, dropout=0.0, dtype="float32")
LORA = {"model.tied": True, "train.lora.rank": 4, "train.lora.dropout": 0.1}
LORA |= {"train.lora.targets": ("query", "wi", "wo")}


def make_config(fsdp=1, **changes):
    config = ict_bfs_wlp.get_config()
    config.model.update(SIZES)
    config.data.update(query_length=8, document_length=12)
    config.train.update(batch_size=16, steps=4, learning_rate=1e-2, warmup_ratio=0.0, clip_norm=0.1)
    config.mesh.update(fsdp=fsdp, replicate_below=64)
    config.update_from_flattened_dict(changes)
    return config


def make_batch(config, seed):
    random = np.random.default_rng(seed)
    B, Q, D = config.train.batch_size, config.data.query_length, config.data.document_length
    if config.recipe != "two_tower":
        positions = random.integers(0, D, (B, 2))
        labels, weights = random.integers(5, VOCABULARY, (B, 2)), np.ones((B, 2), np.float32)
        return {"text": ids(random, B, D), "positions": positions, "labels": labels, "weights": weights}
    query, document = ids(random, B, Q), ids(random, B, 1, D)
    return {
        "query": query, "query_types": np.zeros_like(query), "document": document,
        "document_types": np.zeros_like(document), "document_id": random.integers(0, 10, (B, 1)),
        "log_q": random.normal(size=(B, 1)).astype(np.float32),
    }  # fmt: skip


def ids(random, *shape):
    return random.integers(1, VOCABULARY, shape) * (np.arange(shape[-1]) < random.integers(3, 9, (*shape[:-1], 1)))


def begin(config):
    mesh, model = make_mesh(config), abstract_model(config, VOCABULARY)
    return mesh, initial_parameters.initial_state(config, VOCABULARY, train_state.abstract_state(config, model, mesh))


def run(config, steps=3):
    """Trains; returns the last state and the losses."""
    mesh, state = begin(config)
    with jax.set_mesh(mesh):
        step, losses = train_state.make_step(config, abstract_model(config, VOCABULARY)), []
        for seed in range(steps):
            batch = jax.device_put(make_batch(config, seed), sharding.batch_sharding(mesh))
            state, metrics = step(state, batch)
            losses.append(float(jax.block_until_ready(metrics)["loss"]))
    return state, losses
