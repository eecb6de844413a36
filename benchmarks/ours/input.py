"""The input of training, the train step on one batch again and again, or both as in training: examples a second."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import worker

_SECONDS = 4.0  # a turn before it, of as many, uses up what was made ready meanwhile


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: folder (a work directory with a corpus, whose config says what is measured), and what is."""
    import jax

    from benchmarks.ours.training import TrainStep
    from retrieval.recipes.parameters import make_mesh
    from retrieval.runs.fitting import examples
    from retrieval.runs.pipeline.run import Run
    from retrieval.runs.pipeline.work_directory import kept_config

    folder = Path(settings["folder"])
    run = Run(kept_config(folder), folder, folder / "requirements.lock")
    vocabulary, mesh = run.load_vocabulary(), make_mesh(run.config)
    with jax.set_mesh(mesh):
        batches = examples.make_batches(run, vocabulary, mesh)
    batch = next(batches)
    step = None if settings["what"] == "input" else TrainStep(run.config, len(vocabulary), mesh)

    def turn() -> dict[str, float]:
        began, calls = time.perf_counter(), 0
        while time.perf_counter() < began + _SECONDS:
            rows = batch if settings["what"] == "trainer" else next(batches)
            if step:
                step(rows)
            calls += 1
        return {"examples/s": run.config.train.batch_size * calls / (time.perf_counter() - began)}

    return turn


if __name__ == "__main__":
    worker.serve(prepare)
