"""Two or more devices: a step with rows shared, and with parameters shared too (FSDP); its loss is that of one device.

The in-batch softmax compares every query with the documents of all devices.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import pairs
from benchmarks.accelerator import step
from benchmarks.accelerator.work import Attempt, Given
from benchmarks.measure import timed
from benchmarks.ours.training import TrainStep, peak_device_mb
from benchmarks.worker import MissingError
from retrieval.training import sharding

_TURNS, _BATCHES = 3, 2
_MODEL = "L12 H768"


def attempts(given: Given) -> Iterator[Attempt]:
    """One device, then all of them in two ways; the batch of all has as many rows for each."""
    count = len(jax.devices())
    given.open({"devices": count, "model": _MODEL})
    if count == 1:
        raise MissingError("one device alone: there is nothing to share")
    yield Attempt("one device", lambda: _step(given, 1, 1))
    for fsdp in (1, count):
        shared = "rows" if fsdp == 1 else "rows and parameters"
        yield Attempt(f"{count} devices share {shared}", lambda fsdp=fsdp: _step(given, count, fsdp))


def _step(given: Given, devices: int, fsdp: int) -> Iterator[dict[str, Any]]:
    config = config_of(given, devices, fsdp)
    mesh = sharding.make_mesh(fsdp, jax.devices()[:devices])
    with tempfile.TemporaryDirectory() as folder:
        path = step.write_pairs(given, config, _BATCHES, Path(folder))
        batches = list(pairs.batches(path, config.train.batch_size, _BATCHES))
    train = TrainStep(config, given.pack.vocab_size, mesh)

    yield {"loss": float(train(batches[0])["loss"]), "ln of the batch": float(np.log(config.train.batch_size))}
    best, tokens = float("inf"), sum(map(pairs.tokens, batches))
    for number in range(_TURNS):
        best = min(best, timed(lambda: [train(rows) for rows in batches])[1])
        numbers = {"tokens/s": tokens / best, "pairs/s": config.train.batch_size * _BATCHES / best}
        yield numbers | {"peak MB of the device": peak_device_mb(), "turns": number + 1}
    if devices > 1:
        alone = TrainStep(config, given.pack.vocab_size, sharding.make_mesh(1, jax.devices()[:1]))
        yield {"loss on one device": float(alone(batches[0])["loss"])}


def config_of(given: Given, devices: int, fsdp: int) -> ConfigDict:
    """The config of a step on so many devices, of which `fsdp` share parameters."""
    config = step.config_of(given, step.STEPS[_MODEL])
    config.train.batch_size *= devices
    config.mesh.fsdp = fsdp
    config.model.update(dropout=0.0, unroll=1)
    return config
