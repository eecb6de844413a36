"""The peak memory of a command: of its main process, and of the largest of the processes that it starts.

    python -m benchmarks.memory python -m retrieval.main --workdir=RUN --config=... --stage=prepare

Reads /proc twenty times a second, so it needs Linux; the kernel keeps the peak of every process itself, so nothing is
missed but what a process does in its last 50 milliseconds. Exits as the command does.
"""

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_INTERVAL = 0.05


class Peaks(NamedTuple):
    """In kilobytes: the largest resident memory of the main process, of one child, and of all processes at a time.

    What processes share is counted in each of them.
    """

    main: int
    child: int
    together: int


def watch(process: subprocess.Popen) -> Peaks:
    """Waits for a process to end."""
    peaks, together = defaultdict(int), 0
    while process.poll() is None:
        now = 0
        for pid in _tree(process.pid):
            resident, peak = _memory(pid)
            peaks[pid] = max(peaks[pid], peak)
            now += resident
        together = max(together, now)
        time.sleep(_INTERVAL)
    main = peaks.pop(process.pid, 0)
    return Peaks(main, max(peaks.values(), default=0), together)


def _tree(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has ended meanwhile
        return
    for child in " ".join(tasks).split():
        yield from _tree(int(child))


def _memory(pid: int) -> tuple[int, int]:
    """Resident memory of a process and its peak so far, in kilobytes."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    fields = dict(line.split(":", 1) for line in lines)
    resident, peak = (int(fields.get(name, "0 kB").split()[0]) for name in ("VmRSS", "VmHWM"))
    return resident, peak


def main(command: Sequence[str]) -> int:
    """Runs a command, prints its time and its peaks, and returns its exit status."""
    if not command or command[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if command else 2
    began = time.perf_counter()
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}; a program is needed", file=sys.stderr)
        return 2
    peaks = watch(process)
    megabytes = ", ".join(f"{name} {kilobytes / 1024:,.0f} MiB" for name, kilobytes in peaks._asdict().items())
    print(f"{time.perf_counter() - began:.1f} s, peak memory: {megabytes}", file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
