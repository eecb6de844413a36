"""Our train step on given pairs: useful tokens and operations a second, and memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import pairs, worker
from benchmarks.measure import timed
from retrieval.data.packing import Packing
from retrieval.errors import UserError


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, pairs, batch, batches, vocab_size; accelerator where it is one's work."""
    from ml_collections import ConfigDict

    from benchmarks.ours import training
    from retrieval.stages import examples
    from retrieval.training import sharding

    if settings.get("accelerator"):
        training.check_accelerator()
    config = ConfigDict(settings["config"])
    step = training.TrainStep(config, settings["vocab_size"], sharding.make_mesh())
    batches = list(pairs.batches(Path(settings["pairs"]), settings["batch"], settings["batches"]))
    if packing := examples.packing(config):
        batches = [_packed(rows, packing) for rows in batches]

    operations = sum(map(step.flops, batches))

    def turn() -> dict[str, float]:
        seconds = timed(lambda: [step(rows) for rows in batches])[1]
        return {
            "tokens/s": sum(map(pairs.tokens, batches)) / seconds,
            "pairs/s": settings["batch"] * len(batches) / seconds,
            "TFLOP/s": operations / seconds / 1e12,
            "peak MB": worker.peak_mb(),
            "peak MB of the device": training.peak_device_mb(),
        }

    return turn


def _packed(rows: pairs.Rows, packing: Packing) -> pairs.Rows:
    """The same pairs, several texts in a row, lane after lane."""
    starts = range(0, len(rows["query"]), packing.examples)
    lanes = [packing.pack({n: values[s : s + packing.examples] for n, values in rows.items()}) for s in starts]
    if None in lanes:
        raise UserError("the pairs of a lane do not fit into the rows of config.data.pack: raise its shares")
    return {name: np.concatenate([lane[name] for lane, _ in lanes]) for name in lanes[0][0]}


if __name__ == "__main__":
    worker.serve(prepare)
