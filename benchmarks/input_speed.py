"""The speed of the input, against the trainer that eats it.

    python -m benchmarks.input_speed --workdir=WORKDIR
    python -m benchmarks.input_speed --workdir=WORKDIR --notrainer

WORKDIR has a prepared corpus (`--stage=prepare`); its config says what is measured. Prints a table and writes
WORKDIR/input_speed.json.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags
from absl import logging as absl_logging
from ml_collections import ConfigDict

from benchmarks.measure import markdown, spread
from benchmarks.ours.training import TrainStep
from retrieval import cli
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.recipes.parameters import make_mesh
from retrieval.runs.fitting import examples
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.protected import check_run
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.work_directory import kept_config

_TRAINER = flags.DEFINE_bool("trainer", True, "Measure the trainer too; not for a model that is too big for here.")

# Chang et al. 2020: 100,000 steps of 8192 pairs in 2.5 days on 32 TPU chips, which have 8 hosts.
PAPER_NEEDS = 8192 * 100_000 / (2.5 * 24 * 3600) / 8  # examples per second and host

_ROUNDS = 5
_SECONDS = 4.0

_MEASURES = {  # name -> what it is, format
    "input": ("the input alone, examples/s", ",.0f"),
    "trainer": ("the trainer alone, on the same batch again and again, examples/s", ",.0f"),
    "ratio": ("input / trainer", ".1f"),
    "training": ("both, as in training, examples/s", ",.0f"),
    "waiting": ("share of the time of training that goes into waiting for a batch, %", ".2f"),
    "paper": (f"input / the {PAPER_NEEDS:.0f} examples/s that a host of the paper's pod needs", ".1f"),
}


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    cli.refuse_arguments(argv)
    if not cli.WORKDIR.value:
        raise UserError("--workdir is missing: a folder with a prepared corpus, such as --workdir=runs/quickstart")
    folder = Path(cli.WORKDIR.value)
    run = Run(cli.config() or kept_config(folder), folder, folder / "requirements.lock")
    check_run(run)
    if not records.is_done(run, "prepare"):
        raise UserError(f"{folder} has no corpus: python -m retrieval.main --workdir={folder} --stage=prepare first")
    result = measure(run, _TRAINER.value, _ROUNDS, _SECONDS)
    files.write_json(folder / "input_speed.json", result)
    print(table(result))


def measure(run: Run, trainer: bool, rounds: int, seconds: float) -> dict[str, Any]:
    """Speeds of the input, the trainer and both over a prepared corpus, taken in turn `rounds` times, `seconds` each.

    Without a trainer the input is compared with what the paper's pod needs. Returns the settings, the seconds to the
    first batch, and for every measure its median and range over the rounds.
    """
    vocabulary, mesh = run.load_vocabulary(), make_mesh(run.config)
    with jax.set_mesh(mesh):
        began = time.perf_counter()
        batches = examples.make_batches(run, vocabulary, mesh)
        batch = next(batches)
        result = {"settings": _settings(run.config), "seconds_to_first_batch": round(time.perf_counter() - began, 1)}
        step = TrainStep(run.config, len(vocabulary), mesh) if trainer else None
        taken = [_round(batches, batch, step, run.config.train.batch_size, seconds) for _ in range(rounds)]
    return result | {name: spread([values[name] for values in taken]) for name in taken[0]}


def table(result: Mapping[str, Any]) -> str:
    """What `measure` returned, as Markdown."""
    settings = ", ".join(f"{name} {value}" for name, value in result["settings"].items())
    rows = [
        [title, *(format(value, form) for value in result[name].values())]
        for name, (title, form) in _MEASURES.items()
        if name in result
    ]
    spoken = ["", f"The first batch came after {result['seconds_to_first_batch']} s."]
    return "\n".join([settings, "", *markdown(["", "median", "lowest", "highest"], rows), *spoken])


def _round(batches: Iterator, batch: Mapping, step: Callable | None, rows: int, seconds: float) -> dict[str, float]:
    input_rate, _ = _rate(lambda: next(batches), seconds)
    if step is None:
        return {"input": rows * input_rate, "paper": rows * input_rate / PAPER_NEEDS}
    (trainer_rate, _), waits = _rate(lambda: step(batch), seconds), list[float]()

    def both() -> None:
        began = time.perf_counter()
        drawn = next(batches)
        waits.append(time.perf_counter() - began)
        step(drawn)

    training_rate, calls = _rate(both, seconds)
    return {
        "input": rows * input_rate,
        "trainer": rows * trainer_rate,
        "ratio": input_rate / trainer_rate,
        "training": rows * training_rate,
        "waiting": 100 * statistics.mean(waits[-calls:]) * training_rate,
    }


def _rate(function: Callable[[], Any], seconds: float) -> tuple[float, int]:
    """Calls per second, and calls; after as long untimed, in which buffers that were filled meanwhile are used up."""
    _call(function, seconds)
    began, calls = time.perf_counter(), _call(function, seconds)
    return calls / (time.perf_counter() - began), calls


def _call(function: Callable[[], Any], seconds: float) -> int:
    until, calls = time.perf_counter() + seconds, 0
    while time.perf_counter() < until or not calls:
        function()
        calls += 1
    return calls


def _settings(config: ConfigDict) -> dict[str, Any]:
    sizes = {name: config.data[name] for name in ("lanes", "query_length", "document_length")}
    return {"rows": config.train.batch_size, **sizes, "cores": len(os.sched_getaffinity(0))}


if __name__ == "__main__":
    cli.run(main)
