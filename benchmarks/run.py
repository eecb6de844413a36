"""Every speed and memory that the project is proud of, as a ratio against a peer that does the same work beside it.

    python -m benchmarks.run --workdir=runs/benchmarks --peer_python=PEERS/bin/python --config=benchmarks/config.py \\
        --config.corpus=DUMP.xml.bz2 --config.vocab=VOCAB --config.sets.reqa=SQUAD.json

Makes the data first, where it is not there yet (without --config later, as in `retrieval.main`). Prints two Markdown
tables, and writes them and the numbers into WORKDIR/benchmarks. benchmarks/README.md says what is compared, and how.
"""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags
from absl import logging as absl_logging

from benchmarks import contest
from benchmarks.works import LABELLED, SEARCHES, WORKS, Sizes
from retrieval import cli
from retrieval.common import files
from retrieval.common.errors import UserError, unknown_name
from retrieval.runs.pipeline import preflight
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.runner import run_stage, take_run
from retrieval.runs.pipeline.work_directory import kept_config

_WORKS = flags.DEFINE_list("works", None, f"Works, of {', '.join(WORKS)}; all by default.")
_PEER_PYTHON = flags.DEFINE_string("peer_python", None, "The interpreter in which benchmarks/peers.txt is installed.")
_ALONE = flags.DEFINE_bool("alone", False, "Measure our own systems only, without the peers.")
_TURNS = flags.DEFINE_integer("turns", 5, "How often every system has its turn.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", Sizes.large, "Pairs of the large batch.", lower_bound=1)
_CHUNK = flags.DEFINE_integer("chunk", Sizes.chunk, "Of the large batch, pairs at a time.", lower_bound=1)
_DOCUMENTS = flags.DEFINE_integer("documents", Sizes.documents, "Documents to encode.", lower_bound=1)
_FILES = flags.DEFINE_integer("files", Sizes.files, "Files of articles to tokenise and cut.", lower_bound=1)
_BEIR = flags.DEFINE_string("beir", None, f"The folder of a BEIR set, for {', '.join(LABELLED)}.")
_STEPS = flags.DEFINE_integer("steps", Sizes.steps, "Steps of 'learning'.", lower_bound=4)
_VECTORS = flags.DEFINE_string("vectors", None, f"The folder of vectors for {', '.join(SEARCHES)}.")
_BITS = flags.DEFINE_integer("bits", Sizes.bits, "Of a dimension, for late-search.")
_SEEDS = flags.DEFINE_integer("seeds", Sizes.seeds, "Seeds of 'learning'.", lower_bound=1)


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    jax.config.update("jax_platforms", "cpu")
    cli.refuse_arguments(argv)
    names = _WORKS.value or [name for name in WORKS if name not in SEARCHES and (_BEIR.value or name not in LABELLED)]
    for name in names:
        if name not in WORKS:
            raise unknown_name("work", name, WORKS)
    peer_python = _peer_python()
    run = _run(with_data=bool({*names} - {*LABELLED, *SEARCHES}))
    sizes = Sizes(
        _BATCH.value,
        _CHUNK.value,
        _DOCUMENTS.value,
        _FILES.value,
        Path(_BEIR.value) if _BEIR.value else None,
        _STEPS.value,
        _SEEDS.value,
        Path(_VECTORS.value) if _VECTORS.value else None,
        _BITS.value,
    )
    results = []
    for name in names:
        load = os.getloadavg()[0]
        result = contest.hold(WORKS[name](run, sizes), _TURNS.value, peer_python)
        results.append({"name": name, "load_before": round(load, 1), **result})
        print("\n".join(contest.table(results[-1:])), flush=True)
        write(run.folder / "benchmarks", results)


def write(folder: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """`results.json` and `results.md`; works of earlier calls that are not among these results are kept."""
    path = folder / "results.json"
    before = files.read_json(path) if path.exists() else {}
    merged = before | {result["name"]: {"machine": machine(), "turns": _TURNS.value, **result} for result in results}
    files.write_json(path, merged)
    values = list(merged.values())
    files.write_text(folder / "results.md", "\n".join([*contest.table(values), "", *contest.details(values), ""]))


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(": ", 1)[1] for line in lines if line.startswith("model name")]
    return {"cores": len(os.sched_getaffinity(0)), "cpu": names[0] if names else platform.machine()}


def _peer_python() -> str | None:
    if _ALONE.value:
        return None
    if not _PEER_PYTHON.value:
        raise UserError(
            "--peer_python is missing: an interpreter that has benchmarks/peers.txt (see benchmarks/README.md); "
            "--alone measures our own systems only"
        )
    try:
        subprocess.run([_PEER_PYTHON.value, "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"--peer_python={_PEER_PYTHON.value}: not a Python that runs ({error})") from error
    return _PEER_PYTHON.value


def _run(*, with_data: bool) -> Run:
    """The work directory, with the corpus and its pairs made where a work needs them."""
    if not cli.WORKDIR.value:
        raise UserError("--workdir is missing: the folder for data and numbers, such as --workdir=runs/benchmarks")
    folder = Path(cli.WORKDIR.value)
    config = cli.config() or kept_config(folder)
    run = Run(config, folder, folder / "requirements.lock")
    if with_data:
        preflight.check(run, config.stages)
    take_run(run)
    for stage in config.stages if with_data else ():
        run_stage(run, stage)
    return run


if __name__ == "__main__":
    cli.run(main)
