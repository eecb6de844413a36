"""A run that is killed and goes on, with deterministic operations: its parameters are those of one that was not, to
the bit.

    python -m benchmarks.accelerator.restart DATA FOLDER TOY
"""

import argparse
import contextlib
import hashlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.accelerator.work import Attempt, Given
from retrieval.common.errors import UserError

_MODEL = "L12 H768"
_STEPS, _EVERY, _KILLED_AT = 24, 8, 11  # of training; a checkpoint; when the run is killed, or soon after
_FLAG = "--xla_gpu_deterministic_ops=true"


def attempts(given: Given) -> Iterator[Attempt]:
    """With deterministic operations and without: what they cost, and what they bring."""
    given.open({"model": _MODEL, "steps": _STEPS, "checkpoint every": _EVERY, "killed at": _KILLED_AT})
    yield Attempt("deterministic operations", lambda: _compare(given, _FLAG))
    yield Attempt("any operations", lambda: _compare(given, ""))


def _compare(given: Given, flag: str) -> Iterator[dict[str, Any]]:
    environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {'' if given.is_toy else flag}"}
    command = [sys.executable, "-m", "benchmarks.accelerator.restart", str(given.data)]
    with tempfile.TemporaryDirectory() as folder:

        def follow(name: str, kill_at: int = 0) -> dict[str, Any]:
            arguments = [*command, str(Path(folder) / name), str(int(given.is_toy))]
            process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
            return _followed(process, Path(folder) / name / "checkpoints" / str(_EVERY), kill_at)

        whole = follow("whole")
        yield {"ms a step": 1000 * whole["seconds"]}
        follow("killed", _KILLED_AT)
        again = follow("killed")
        yield {
            "went on from step": again.get("from", "0"),
            "equal bits": "yes" if again["sum"] == whole["sum"] else "no",
        }


def _followed(process: subprocess.Popen[str], checkpoint: Path, kill_at: int) -> dict[str, Any]:
    """What a run prints, and the median `seconds` of its steps.

    Args:
      kill_at: the step when it is killed, or the one when there is the checkpoint; 0: not at all.

    Raises:
      UserError: it ended before, or without a sum of its parameters.
    """
    assert process.stdout
    said: dict[str, Any] = {}
    seconds, before = [], 0.0
    with process:
        for line in process.stdout:
            what, _, value = line.strip().partition(" ")
            said[what] = value
            if what == "step":
                seconds.append(time.perf_counter() - before)
                before = time.perf_counter()
            if what == "step" and kill_at and int(value) >= kill_at and checkpoint.exists():
                process.send_signal(signal.SIGKILL)
                return said
    if kill_at or "sum" not in said:
        raise UserError(f"a run ended with status {process.wait()} after step {said.get('step', 0)}")
    return said | {"seconds": statistics.median(seconds)}


def train(data: Path, folder: Path, is_toy: bool) -> None:
    """Trains to the last step, from the newest checkpoint where there is one; says every step, and a sum in the end."""
    import jax

    from benchmarks.accelerator import step
    from benchmarks.accelerator.data import TASKS, Pairs
    from benchmarks.ours import training
    from retrieval.recipes.recipe import abstract_model
    from retrieval.runs.weights import initial_parameters, train_state
    from retrieval.training import loop, sharding

    given = Given(data, folder, "", 0.0, "" if is_toy else "a card")
    mesh, config = training.one_device(), step.config_of(given, step.STEPS[_MODEL])
    config.model.unroll, config.train.steps = 1, _STEPS
    config.loop.update(validate_every=0, keep_checkpoints=2)
    rates = {task: given.pack.settings["rates"][task] for task in TASKS}
    source = Pairs(given.pack, rates, 0, config.data.query_length, config.data.document_length)

    class Batches:
        """Batches by their numbers."""

        number = 0

        def __iter__(self) -> "Batches":
            return self

        def __next__(self) -> dict[str, jax.Array]:
            self.number += 1
            rows = source.batch(self.number - 1, config.train.batch_size, packed=False)
            return jax.device_put(rows, sharding.batch_sharding(mesh))

        def save(self, folder: Path) -> None:
            (folder / "number").write_text(str(self.number))

        def restore(self, folder: Path) -> None:
            self.number = int((folder / "number").read_text())

    model, size = abstract_model(config, given.pack.vocab_size), given.pack.vocab_size
    like, progress = train_state.abstract_state(config, model, mesh), loop.Progress(Batches())
    folder.mkdir(parents=True, exist_ok=True)
    with jax.set_mesh(mesh), contextlib.closing(train_state.open_checkpoints(folder, config)) as checkpointer:
        if checkpointer.latest_step() is not None:
            state = like.restored(checkpointer, progress)
            print(f"from {int(state.step)}", flush=True)
        else:
            state = initial_parameters.initial_state(config, size, like)
        state = loop.train(
            state,
            train_state.make_step(config, model),
            progress,
            checkpointer,
            loop.Settings(steps=_STEPS, log_every=1, checkpoint_every=_EVERY),
            loop.Hooks(log=lambda step, metrics: print(f"step {step}", flush=True)),
        )
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(jax.device_get(state.params)):
        digest.update(leaf.tobytes())
    print(f"sum {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("toy", type=int)
    asked = parser.parse_args()
    train(asked.data, asked.folder, bool(asked.toy))
