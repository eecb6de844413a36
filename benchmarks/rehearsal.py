"""Stages of a run, one after the other, each killed once and resumed: hours and memory.

    python -m benchmarks.rehearsal --out=rehearsal.json --kill=sets=60,encode=600,index=300,evaluate=60 -- \
        python -m retrieval.main --config=... --workdir=RUN

Each stage of --kill is started with `--stage=` behind the command, killed (SIGKILL) after so many seconds, and started
again until it ends. A stage that ends before is not killed, and the table says so. 0 kills nothing.
"""

import argparse
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure, memory
from retrieval import cli, files
from retrieval.errors import UserError


def main(argv: Sequence[str]) -> None:
    """Runs the stages, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsal", usage="%(prog)s --out --kill -- COMMAND")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file that is written after each stage")
    parser.add_argument("--kill", required=True, help="STAGE=SECONDS,...: when each stage is killed; 0: never")
    parser.add_argument("command", nargs="+", help="the command of a run, behind --")
    given = parser.parse_args(argv[1:])
    measured: dict[str, Any] = {}
    for stage, seconds in _kills(given.kill).items():
        measured[stage] = rehearse([*given.command, f"--stage={stage}"], seconds)
        files.write_json(given.out, measured)
    print("\n".join(table(measured)))


def rehearse(command: Sequence[str], kill_after: float) -> dict[str, Any]:
    """Runs a command, killed once and started again.

    Returns:
      "killed": seconds until the kill, and "resumed": those of the second start. Without a kill there is "whole" alone.
      "processor": seconds of all cores. "peak_mib": the memory of all processes at a time, the larger of both starts.

    Raises:
      UserError: it fails.
    """
    before = _processor_seconds()
    first = _start(command, kill_after)
    result = {"whole": first["seconds"]}
    starts = [first]
    if first["killed"]:
        starts.append(_start(command, 0))
        result = {"killed": first["seconds"], "resumed": starts[-1]["seconds"]}
    return result | {
        "processor": round(_processor_seconds() - before, 1),
        "peak_mib": max(start["peak_mib"] for start in starts),
    }


def table(measured: Mapping[str, Any]) -> list[str]:
    """What was measured, as Markdown."""
    rows = []
    for stage, values in measured.items():
        killed = "no" if "whole" in values else f"after {values['killed']:,.0f} s"
        seconds = values["whole"] if "whole" in values else values["resumed"]
        rows.append([stage, killed, f"{seconds:,.0f}", f"{values['processor']:,.0f}", f"{values['peak_mib']:,.0f}"])
    header = ["stage", "killed", "then, s", "processor time of both, s", "peak of all processes, MiB"]
    return measure.markdown(header, rows)


def _kills(value: str) -> dict[str, float]:
    try:
        return {stage: float(seconds) for stage, seconds in (pair.split("=") for pair in value.split(","))}
    except ValueError as error:
        raise UserError(f"--kill={value}: expected STAGE=SECONDS,STAGE=SECONDS") from error


def _start(command: Sequence[str], kill_after: float) -> dict[str, Any]:
    """Runs a command to its end, or kills it and what it started after some seconds."""
    began = time.perf_counter()
    process = subprocess.Popen(command, start_new_session=True)
    timer = threading.Timer(kill_after, os.killpg, (process.pid, signal.SIGKILL))
    if kill_after:
        timer.start()
    peaks = memory.watch(process)
    timer.cancel()
    killed = process.returncode == -signal.SIGKILL
    if process.returncode and not (killed and kill_after):
        raise UserError(f"'{' '.join(command)}' ended with status {process.returncode}")
    return {"seconds": round(time.perf_counter() - began, 1), "killed": killed, "peak_mib": peaks.together // 1024}


def _processor_seconds() -> float:
    """Of the processes that have ended; what a killed one started is waited for by others, and is not counted."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    cli.run(main, has_flags=False)
