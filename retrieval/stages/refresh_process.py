"""The process that makes a version of the labelled pairs while another one trains; `refresh` starts it.

    python -m retrieval.stages.refresh_process --workdir=runs/ance requirements.lock 3

It reads the checkpoint that the other one writes, does what a refresh on the training mesh does, and ends when its
standard input does.
"""

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import logging as absl_logging

from retrieval.cli import command_line
from retrieval.errors import UserError, first_line
from retrieval.pipeline import preflight
from retrieval.recipes import train_state
from retrieval.recipes.recipe import abstract_model
from retrieval.recipes.towers import Embedder
from retrieval.runtime import ending
from retrieval.stage_outputs import Run
from retrieval.stages import versions
from retrieval.training import checkpoint, sharding

_log = logging.getLogger("retrieval.stages.refresh_process")  # also where the module is the program

_POLL_SECONDS = 0.1


def main(argv: Sequence[str]) -> None:
    """Makes the version that the last argument names, for the run of --workdir."""
    ending.end_with_input()
    absl_logging.set_verbosity(absl_logging.WARNING)
    folder, (lock, version) = Path(command_line.WORKDIR.value or ""), argv[1:]
    make(Run(preflight.read_config(folder), folder, Path(lock)), int(version))
    os._exit(0)  # training may be waiting, and what JAX and TensorFlow do at their end takes long


def make(run: Run, version: int) -> None:
    """Makes a version with the parameters after its step, on all devices of this process.

    Raises:
      UserError: there is no device, the checkpoint is damaged, or as `versions.make`.
    """
    config, vocabulary = run.config, run.load_vocabulary()
    mesh, step = _mesh(config.mesh.fsdp, config.mine.refresh_env), versions.schedule(config.mine).made_after(version)
    like = train_state.abstract_state(config, abstract_model(config, len(vocabulary)), mesh)
    while not (run.checkpoints / str(step)).exists():  # it is being written
        time.sleep(_POLL_SECONDS)
    params = checkpoint.read(run.checkpoints, step, like).params
    place = f"{mesh.size} devices ({jax.default_backend()})"
    _log.info("version %d: with the parameters after step %d, on %s", version, step, place)
    with jax.set_mesh(mesh):
        embedder = Embedder(config, vocabulary, mesh)
        versions.make(run, vocabulary, embedder, mesh, params, version, step)
    _log.info("version %d: written", version)


def _mesh(fsdp: int, environment: Sequence[str]) -> jax.sharding.Mesh:
    try:
        return sharding.local_mesh(fsdp)
    except (RuntimeError, AssertionError) as error:  # JAX has several ways to say so
        raise UserError(
            f"config.mine.refresh_env={tuple(environment)}: there are no such devices "
            f"({first_line(error)}); name others"
        ) from error


if __name__ == "__main__":
    command_line.run(main)
