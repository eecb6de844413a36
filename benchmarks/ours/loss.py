"""The in-batch loss and its gradients, alone: ours, and the plain one that holds every score of the batch."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import worker
from benchmarks.measure import timed
from retrieval.training.loss_kind import Metrics
from retrieval.training.objectives.in_batch_softmax import InBatchSoftmax


def plain(
    query_BE: jax.Array, document_BKE: jax.Array, document_ids_BK: jax.Array, temperature: float
) -> tuple[jax.Array, Metrics]:
    """What `InBatchSoftmax` computes with no correction and one document a query, as a textbook has it."""
    score_BB = query_BE @ document_BKE[:, 0].T
    ids_B = document_ids_BK[:, 0]
    positive_BB = jnp.eye(len(ids_B), dtype=bool)
    score_BB = jnp.where((ids_B[:, None] == ids_B) & ~positive_BB, -jnp.inf, score_BB)
    loss_B = -jnp.diagonal(jax.nn.log_softmax(score_BB / temperature))
    rival_B = jnp.where(positive_BB, -jnp.inf, score_BB).max(axis=1)
    return loss_B, {"recall@1": (jnp.diagonal(score_BB) > rival_B).astype(jnp.float32)}


def blocks(
    query_BE: jax.Array, document_BKE: jax.Array, document_ids_BK: jax.Array, temperature: float
) -> tuple[jax.Array, Metrics]:
    """The project's loss."""
    return InBatchSoftmax(temperature, log_q=False)(query_BE, document_BKE, {"document_id": document_ids_BK})


LOSSES = {"plain": plain, "blocks": blocks}


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: loss (a name in `LOSSES`), batch, dimensions."""
    loss, shape = LOSSES[settings["loss"]], (settings["batch"], settings["dimensions"])
    generator = np.random.default_rng(0)
    query_BE, document_BE = (jnp.asarray(_directions(generator, shape)) for _ in range(2))
    ids_BK = jnp.arange(len(query_BE))[:, None]

    def mean(query_BE: jax.Array, document_BE: jax.Array) -> tuple[jax.Array, Metrics]:
        loss_B, metrics = loss(query_BE, document_BE[:, None], ids_BK, 0.05)
        return loss_B.mean(), metrics

    step = jax.jit(jax.value_and_grad(mean, argnums=(0, 1), has_aux=True)).lower(query_BE, document_BE).compile()
    before = worker.resident_mb()
    worker.reset_peak()

    def turn() -> dict[str, float]:
        seconds = timed(lambda: jax.block_until_ready(step(query_BE, document_BE)))[1]
        return {"seconds": seconds, "MB on top": worker.peak_mb() - before}

    return turn


def _directions(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    values_BE = generator.standard_normal(shape, np.float32)
    return values_BE / np.linalg.norm(values_BE, axis=1, keepdims=True)


if __name__ == "__main__":
    worker.serve(prepare)
