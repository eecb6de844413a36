"""The speed of the server: how long one search takes when so many clients ask at once, and how many are answered.

    python -m benchmarks.serving_speed --workdir=runs/quickstart --results=serving_speed.json

Starts `--stage=serve` on the work directory, and asks it the queries of its evaluation sets. The clients are in this
process, so they share the cores with the server. Each client asks, waits for the answer, and asks again: at once, or
after `--pause` milliseconds. Prints a table and writes --results.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from benchmarks.measure import markdown
from retrieval import cli
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.sets import beir

_OUT = flags.DEFINE_string("results", None, "The JSON file that is written.")
_CLIENTS = flags.DEFINE_list("clients", ["1", "8", "32"], "How many clients ask at once, one measurement each.")
_PAUSE = flags.DEFINE_float("pause", 0, "Milliseconds between an answer and the client's next question.", lower_bound=0)
_SECONDS = flags.DEFINE_float("seconds", 10, "Of each measurement, after 2 that are not counted.", lower_bound=0.1)
_SYSTEMS = flags.DEFINE_string("systems", "hybrid", "What is asked for, with commas; '' is all.")
_PORT = flags.DEFINE_integer("server_port", 8190, "The port of the server.", lower_bound=1, upper_bound=65535)

_HOST = "127.0.0.1"
_WARM, _START = 2.0, 300.0  # seconds


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    cli.refuse_arguments(argv)
    folder = Path(cli.WORKDIR.value or "")
    paths = sorted(folder.glob("sets/*/queries.jsonl"))
    if not cli.WORKDIR.value or not paths:
        raise UserError("--workdir: a work directory with evaluation sets is needed, whose queries are asked")
    queries = [text for path in paths for text in beir.read_queries(path).values()]
    if not queries:
        raise UserError(f"{folder}/sets: the evaluation sets have no queries; make them with --stage=sets")
    numbers, measured = _numbers_of_clients(), []
    with _server(folder):
        for clients in numbers:
            load = os.getloadavg()[0]
            result = asyncio.run(_ask(queries, clients))
            measured.append({"clients": clients, "load_before": round(load, 2), **result})
            print(f"{clients} clients: {measured[-1]}", file=sys.stderr)
    print("\n".join(table(measured)))
    if _OUT.value:
        files.write_json(Path(_OUT.value), {"cores": os.cpu_count(), "pause_ms": _PAUSE.value, "measured": measured})


def table(measured: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of the table, a row for each number of clients."""
    header = ["clients", "p50, ms", "p90, ms", "p99, ms", "requests/s", "load before"]
    rows = [
        [str(each["clients"]), *(f"{each[name]:.1f}" for name in ("p50", "p90", "p99", "per_second", "load_before"))]
        for each in measured
    ]
    return markdown(header, rows)


def summary(milliseconds: Sequence[float], seconds: float) -> dict[str, float]:
    """Percentiles of the times of the answers, and how many came in a second."""
    found = dict(zip(("p50", "p90", "p99"), np.percentile(milliseconds, [50, 90, 99]).round(3).tolist()))
    return {**found, "per_second": round(len(milliseconds) / seconds, 1), "answers": len(milliseconds)}


def _numbers_of_clients() -> list[int]:
    given = _CLIENTS.value
    if not given or not all(each.isdecimal() and int(each) for each in given):
        raise UserError(f"--clients={','.join(given)}: whole numbers of 1 or more are needed, such as --clients=1,8,32")
    return list(map(int, given))


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[None]:
    """A server of a process of its own, at a port where no other answers: that one would be measured."""
    port = _PORT.value
    try:
        socket.create_server((_HOST, port)).close()
    except OSError as error:
        raise UserError(f"--server_port={port}: {os.strerror(error.errno or 0)}; give a port that is free") from error
    command = [sys.executable, "-m", "retrieval.main", f"--workdir={folder}", "--stage=serve"]
    process = subprocess.Popen([*command, f"--config.serve.port={port}"])
    try:
        until = time.monotonic() + _START
        while not _answers():
            if process.poll() is not None or time.monotonic() > until:
                raise UserError(f"{folder}: the server does not start; --stage=serve says why")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def _answers() -> bool:
    try:
        with urllib.request.urlopen(f"http://{_HOST}:{_PORT.value}/api/health", timeout=60) as answer:
            return answer.status == 200
    except OSError:
        return False


async def _ask(queries: Sequence[str], clients: int) -> dict[str, float]:
    """All clients, until the time is over; those of the first seconds are not counted."""
    began = time.perf_counter()
    count_from, until = began + _WARM, began + _WARM + _SECONDS.value
    asked = [queries[start % len(queries) :: clients] for start in range(clients)]
    times = await asyncio.gather(*(_client(own, count_from, until) for own in asked))
    return summary([each for client in times for each in client], _SECONDS.value)


async def _client(queries: Sequence[str], count_from: float, until: float) -> list[float]:
    """The milliseconds of one client's answers, on one connection."""
    reader, writer = await asyncio.open_connection(_HOST, _PORT.value)
    systems = f"&systems={urllib.parse.quote(_SYSTEMS.value)}" if _SYSTEMS.value else ""
    times, turn = [], 0
    with contextlib.closing(writer):
        while (began := time.perf_counter()) < until:
            query = urllib.parse.quote(queries[turn % len(queries)])
            writer.write(f"GET /api/search?query={query}{systems} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            body = await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r")[0]))
            if " 200 " not in head.partition("\r")[0]:
                raise UserError(f"the server does not answer: {body[:300]!r}")
            if began >= count_from:
                times.append((time.perf_counter() - began) * 1000)
            turn += 1
            if _PAUSE.value:
                await asyncio.sleep(_PAUSE.value / 1000)
    return times


if __name__ == "__main__":
    cli.run(main)
