"""From the start of a process to the end of its one train step, at step 0 or after a checkpoint far along.

The far checkpoint is made by drawing every batch up to it, as the loop would have; only the steps are not trained.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, folder (a work directory of this alone), step."""
    folder, step = Path(settings["folder"]), settings["step"]
    # What the train stage below leaves behind.
    shutil.rmtree(folder / "checkpoints" / str(step + 1), ignore_errors=True)

    def turn() -> dict[str, float]:
        return {"seconds": timed(lambda: _train(settings["config"], folder))[1]}

    return turn


def travel(values: Mapping[str, Any], folder: Path, step: int) -> None:
    """Saves a checkpoint of a step, if there is none: untrained parameters, and the position after as many batches.

    Args:
      values: the config.
    """
    if (folder / "checkpoints" / str(step)).exists():  # Orbax gives this name to what is whole
        return
    import jax
    from ml_collections import ConfigDict

    from retrieval.pipeline.run import Run
    from retrieval.recipes import examples, initial_parameters, train_state
    from retrieval.recipes.recipe import abstract_model
    from retrieval.training import sharding

    run, mesh = Run(ConfigDict(values), folder, folder / "requirements.lock"), sharding.make_mesh()
    vocabulary = run.load_vocabulary()
    like = train_state.abstract_state(run.config, abstract_model(run.config, len(vocabulary)), mesh)
    state = initial_parameters.initial_state(run.config, len(vocabulary), like)
    state.step += step
    with jax.set_mesh(mesh):
        batches = examples.make_batches(run, vocabulary, mesh)
        for _ in range(step):
            next(batches)
        checkpointer = train_state.open_checkpoints(folder, run.config)
        checkpointer.save(step, state, batches)
        checkpointer.close()


def _train(config: Mapping[str, Any], folder: Path) -> None:
    """The train stage; its imports are a part of the start of a process."""
    from ml_collections import ConfigDict

    from retrieval.pipeline.run import Run
    from retrieval.stages import train

    train.train(Run(ConfigDict(config), folder, folder / "requirements.lock"))


if __name__ == "__main__":
    worker.serve(prepare)
