"""A day on an accelerator, in minutes: what is to be measured there, in the order of its value.

    python -m benchmarks.accelerator --data=DATA --minutes=12 --out=OUT

Each work is a process with a share of the time. It writes what it finds at once, into OUT/WORK.json and OUT/results.md.
A second call goes on where the first one ended: what is done is left, and the curves go on with the next seed.
`--minutes=0` writes the page anew. DATA is made by `benchmarks.accelerator.pack`. Besides this repository it needs JAX,
flax, optax and NumPy, with what these need.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accelerator import outcomes
from benchmarks.accelerator.data import PACKAGES
from retrieval.common.errors import UserError
from retrieval.training.chips import CHIPS

_SEES = (
    "import jax; d = jax.devices()[0]; print(jax.__version__, d.platform, d.device_kind, "
    "(d.memory_stats() or {}).get('bytes_limit', 0), sep='|')"
)
_LEAST = 15  # seconds: a work does not begin in less

# In the order of their value: the share of the time that is left when a work begins.
WORKS: Mapping[str, float] = {
    "curves": 0.5,
    "step": 0.5,
    "encoding": 0.3,
    "search": 0.35,
    "served": 0.3,
    "restart": 0.7,
    "devices": 1.0,
}


def main(arguments: Sequence[str]) -> None:
    """Runs the works."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that benchmarks.accelerator.pack made")
    parser.add_argument("--out", type=Path, required=True, help="the folder for results, those of earlier calls too")
    parser.add_argument("--minutes", type=float, default=12.0, help="of all works together")
    parser.add_argument("--works", default=",".join(WORKS), help=f"some of {','.join(WORKS)}")
    parser.add_argument("--cpu", action="store_true", help="run on a CPU, too: for data of toy size")
    given = parser.parse_args(arguments)
    ends_at = time.monotonic() + 60 * given.minutes
    names = given.works.split(",")
    if unknown := [name for name in names if name not in WORKS]:
        raise UserError(f"--works={given.works}: there is no work '{unknown[0]}', only {', '.join(WORKS)}")
    if not 0 <= given.minutes < 24 * 60:
        raise UserError(f"--minutes={given.minutes:g}: the minutes of all works, such as 12")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.minutes:
        _run(given, names, ends_at)
    outcomes.write_page(given.out)
    print((given.out / "results.md").read_text(encoding="utf-8"), flush=True)


def _run(given: Any, names: Sequence[str], ends_at: float) -> None:
    environment = {
        "PYTHONUNBUFFERED": "1",
        "JAX_COMPILATION_CACHE_DIR": str(Path(tempfile.gettempdir()) / "accelerator-programs"),
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), *_packages(given.data)))),
    }
    said = subprocess.run([sys.executable, "-c", _SEES], capture_output=True, text=True, env=os.environ | environment)
    lines = said.stdout.strip().splitlines()
    if said.returncode or not lines:
        raise UserError(f"JAX does not start: {' '.join(said.stderr.strip().splitlines()[-1:])}")
    version, platform, card, memory = lines[-1].split("|")
    line = f"{time.strftime('%Y-%m-%d %H:%M')}: {card}, JAX {version}, {int(memory) / 1e9:.0f} GB for JAX"
    outcomes.note(given.out, f"{line}, {given.minutes:g} minutes")
    if platform == "cpu" and not given.cpu:
        raise UserError("JAX sees no accelerator, and on a CPU these works take days: --cpu runs data of toy size")
    if platform != "cpu" and card not in {chip.kind for chip in CHIPS}:
        outcomes.note(given.out, f"the peak of a '{card}' is not in the table of cards: no share of it is told")
    for name in names:
        left = ends_at - time.monotonic()
        share = WORKS[name] if name != names[-1] else 1.0
        if left * share < _LEAST:
            outcomes.note(given.out, f"{name}: no time was left for it")
            continue
        _work(name, given, "" if platform == "cpu" else card, environment, left * share)


def _packages(folder: Path) -> list[str]:
    """The packed packages, where the machine lacks them."""
    return [] if importlib.util.find_spec("ml_collections") else [str((folder / PACKAGES).resolve())]


def _work(name: str, given: Any, card: str, environment: Mapping[str, str], seconds: float) -> None:
    """A work in a process of its own. Where that dies, what it was at is left out, and the rest goes on."""
    ends_at, skip = time.monotonic() + seconds, []
    path = given.out / f"{name}.json"
    while (left := ends_at - time.monotonic()) >= _LEAST:
        command = [sys.executable, "-m", "benchmarks.accelerator.work", name, f"--data={given.data}"]
        command += [f"--out={given.out}", f"--seconds={left - 5:.0f}", f"--skip={json.dumps(skip)}", f"--card={card}"]
        print(f"== {name}, {left:.0f} s", flush=True)
        status = _wait(command, os.environ | environment, left)
        if status == 0:
            return
        if status is None:
            outcomes.note(given.out, f"{name}: cut off after {seconds:.0f} s")
            return
        at = _cut_off(path)
        outcomes.note(given.out, f"{name}: its process ended with status {status}{' in ' + at if at else ''}")
        if not at or at in skip:
            return
        skip.append(at)


def _wait(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> int | None:
    """The status of a command; None where it took too long, and was killed with all that it had started."""
    process = subprocess.Popen(command, env=dict(environment), process_group=0)
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _cut_off(path: Path) -> str:
    """What the process of a work was at."""
    runs = outcomes.read(path)["runs"] if path.exists() else {}
    begun = [name for name, run in runs.items() if run["status"] == outcomes.CUT_OFF]
    return begun[-1] if begun else ""


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
