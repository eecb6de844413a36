"""Batches from the shards to the device, and nothing done with them; pairs a second."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, folder (the work directory), seconds."""
    import jax
    from ml_collections import ConfigDict

    from benchmarks.ours import training
    from retrieval.pipeline.run import Run
    from retrieval.recipes import examples

    folder = Path(settings["folder"])
    run, mesh = Run(ConfigDict(settings["config"]), folder, folder / "requirements.lock"), training.one_device()
    with jax.set_mesh(mesh):
        batches = examples.make_batches(run, run.load_vocabulary(), mesh)

    def draw() -> int:
        pairs, seconds = 0, 0.0
        while seconds < settings["seconds"]:
            batch, taken = timed(lambda: jax.block_until_ready(next(batches)))
            pairs, seconds = pairs + len(batch["document_id"]), seconds + taken
        return pairs

    def turn() -> dict[str, float]:
        draw()  # what lay ready in the buffers since the turn before
        pairs, seconds = timed(draw)
        return {"pairs/s": pairs / seconds}

    return turn


if __name__ == "__main__":
    worker.serve(prepare)
