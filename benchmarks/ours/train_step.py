"""Our train step on given pairs: useful tokens and operations a second, and memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import pairs, worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, pairs, batch, batches, vocab_size; accelerator where it is one's work."""
    from ml_collections import ConfigDict

    from benchmarks.ours import training
    from retrieval.recipes.recipe import recipe_of

    if accelerator := settings.get("accelerator"):
        training.check_accelerator()
    config = ConfigDict(settings["config"])
    step = training.TrainStep(config, settings["vocab_size"], training.one_device())
    batches = list(pairs.batches(Path(settings["pairs"]), settings["batch"], settings["batches"]))
    if packing := recipe_of(config).packing():
        batches = [pairs.packed(rows, packing) for rows in batches]
    # Counting takes memory, which is measured on a CPU.
    operations = sum(map(step.flops, batches)) if accelerator else 0

    def turn() -> dict[str, float]:
        seconds = timed(lambda: [step(rows) for rows in batches])[1]
        numbers = {
            "tokens/s": sum(map(pairs.tokens, batches)) / seconds,
            "pairs/s": settings["batch"] * len(batches) / seconds,
            "peak MB": worker.peak_mb(),
        }
        if not accelerator:
            return numbers
        return numbers | {"TFLOP/s": operations / seconds / 1e12, "peak MB of the device": training.peak_device_mb()}

    return turn


if __name__ == "__main__":
    worker.serve(prepare)
