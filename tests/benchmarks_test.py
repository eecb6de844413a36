"""What the benchmarks report and refuse; not how fast anything is. `works_test` has what they measure."""

import asyncio
import os
import socket
import sys

import numpy as np
import pytest
from conftest import REPOSITORY, write
from support.command_flags import forget_flags

from benchmarks import (
    contest,
    enlarge_collection,
    input_speed,
    measure,
    memory,
    rehearsal,
    run,
    search_speed,
    serving_speed,
)
from benchmarks.contest import System, Target, Work
from retrieval import cli
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError


@pytest.fixture(autouse=True)
def own_flags(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x"])
    yield
    forget_flags()
    for module in (run, serving_speed):
        for flag in cli.flags.FLAGS.get_flags_for_module(module.__name__):
            flag.unparse()


class Clock:
    """Time goes on only while somebody works."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


# Every turn is a line of a file that the systems share; `seconds` are the answers, one a turn.
WORKER = """
from pathlib import Path
from benchmarks import worker

def prepare(settings):
    if settings.get("needs"):
        __import__(settings["needs"])
    print("a library that talks")
    log, name, seconds = Path(settings["log"]), settings["name"], settings["seconds"]

    def turn():
        with log.open("a") as file:
            print(name, file=file)
        return {"seconds": seconds[(log.read_text().splitlines().count(name) - 1) % len(seconds)]}

    return turn

worker.serve(prepare)
"""


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Makes systems of the worker above, for either interpreter."""
    for side in ("ours", "peers"):
        (tmp_path / f"made_up_{side}.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    monkeypatch.setattr(System, "is_peer", property(lambda self: self.module == "made_up_peers"))

    def make(name, side, seconds, **settings):
        return System(name, f"made_up_{side}", dict(name=name, log=str(tmp_path / "log"), seconds=seconds, **settings))

    make.turns = lambda: (tmp_path / "log").read_text().splitlines()
    return make


def test_turns_medians_and_the_best_of_ours(system):
    systems = (
        system("ours", "ours", [100, 1, 100, 2, 100, 4]),
        system("ours, small", "ours", [0, 2, 0, 8, 0, 8]),
        system("peer", "peers", [0, 4, 0, 2, 0, 5]),
        system("gone", "peers", [0, 1], needs="no_such_peer"),
    )
    targets = (Target("seconds", "peer", 1.0), Target("seconds", "peer", 0.5, at_most=True))
    result = contest.hold(Work("made up", systems, targets), 3, sys.executable)
    assert system.turns() == ["ours", "ours", "ours, small", "ours, small", "peer", "peer"] * 3
    first_turns_left_out = {"median": 2, "lowest": 1, "highest": 4}
    assert result["systems"]["ours"]["seconds"] == first_turns_left_out
    most, least = result["ratios"]
    assert (most["ours"], most["values"], most["reached"]) == ("ours, small", [8, 4], True)
    assert most["ratio"] == {"median": 1.6, "lowest": 0.5, "highest": 4}  # 2 / 4, 8 / 2 and 8 / 5
    assert (least["ours"], least["values"], least["reached"]) == ("ours", [2, 4], False)
    assert least["ratio"] == {"median": 0.8, "lowest": 0.25, "highest": 1}
    assert result["missing"] == {"gone": "No module named 'no_such_peer'"}
    assert "| gone | left out: No module named 'no_such_peer' |" in contest.table([result])[-1]


def test_a_system_that_breaks_ends_all_with_one_message(system):
    systems = (system("ours", "ours", [0, 1]), system("peer", "peers", []))
    with pytest.raises(UserError, match="'peer' ended with status 1; what it said is above"):
        contest.hold(Work("made up", systems, ()), 2, sys.executable)
    assert system.turns() == ["ours", "ours", "peer"]


def test_systems_of_a_search_take_turns_after_an_uncounted_one(monkeypatch):
    clock, calls = Clock(), []
    monkeypatch.setattr(measure, "time", clock)

    def searcher(name, seconds, rows):
        def search(queries, k):
            clock.work(next(seconds))
            calls.append(name)
            return None, np.array(rows)

        return search

    ours = searcher("ours", iter([100, 1, 2, 4]), [[1, 2], [3, 4]])
    peer = searcher("peer", iter([100, 2, 2, 2]), [[2, 9], [3, 4]])
    measured = search_speed._measure({search_speed.OURS: ours, "peer": peer}, np.ones((2, 1)), 2, rounds=3)
    assert calls == ["ours", "peer"] * 4
    assert measured[search_speed.OURS]["queries_per_second"] == {"median": 1, "lowest": 0.5, "highest": 2}
    assert measured["peer"]["ratio"] == {"median": 1, "lowest": 0.5, "highest": 2}
    assert [measured[name]["recall"] for name in measured] == [1, 0.75]


def test_speeds_and_waiting_of_the_input(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(input_speed, "time", clock)
    batches = iter(lambda: clock.work(2), "never")
    measured = input_speed._round(batches, {}, lambda batch: clock.work(6), rows=24, seconds=100)
    assert measured == pytest.approx({"input": 12, "trainer": 4, "ratio": 3, "training": 3, "waiting": 25})
    calls = iter(range(10**6))  # the first 50 batches lie ready, each of the others takes a second
    batches = iter(lambda: clock.work(0 if next(calls) < 50 else 1), "never")
    assert input_speed._round(batches, {}, None, rows=8, seconds=10)["input"] == pytest.approx(8)


@pytest.mark.parametrize("status", [200, 503])
def test_every_client_of_a_server_asks_and_is_counted(status, monkeypatch):
    monkeypatch.setattr(serving_speed, "_WARM", 0.02)
    asked = []

    async def answer(reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            asked.append(head.decode().split()[1])
            await asyncio.sleep(0.002)
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}".encode())

    async def ask():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        serving_speed.flags.FLAGS(["x", f"--server_port={port}", "--seconds=0.1", "--systems=dense,bm25"])
        async with server:
            return await serving_speed._ask(("a b", "c"), 2)

    if status != 200:
        with pytest.raises((UserError, ExceptionGroup), match="does not answer"):
            asyncio.run(ask())
        return
    result = asyncio.run(ask())
    assert set(asked) == {f"/api/search?query={query}&systems=dense%2Cbm25" for query in ("a%20b", "c")}
    assert 2 <= result["p50"] <= result["p90"] <= result["p99"]
    assert 2 <= result["answers"] <= len(asked) and result["per_second"] == round(result["answers"] / 0.1, 1)


def test_mistakes_are_told_before_anything_starts(tmp_path, monkeypatch, capsys):
    (tmp_path / "sets" / "own").mkdir(parents=True)
    write(tmp_path / "sets" / "own" / "queries.jsonl", '{"_id": "1", "text": "owl"}\n')
    with pytest.raises(UserError, match=r"^--turns=0: 0 is not a positive integer$"):
        cli.parse_flags(["x", "--turns=0"])
    with pytest.raises(UserError, match=r"--peer_python is missing: .*peers\.txt.*--alone"):
        run.main(cli.parse_flags(["run"]))
    with pytest.raises(UserError, match=r"--peer_python=/bin/false: not a Python that runs .*benchmarks/README\.md"):
        contest.check_python("/bin/false")
    assert memory.main(["no-such-program"]) == 2 and capsys.readouterr().err.startswith("error: ")
    monkeypatch.setattr(serving_speed.subprocess, "Popen", lambda *_: pytest.fail("a server was started"))
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        forget_flags()
        cli.parse_flags(["x", f"--workdir={tmp_path}", f"--server_port={port}"])
        with pytest.raises(UserError, match=rf"^--server_port={port}: Address already in use; give a port"):
            serving_speed.main(["x"])


def test_a_larger_collection_has_halves_of_the_old_texts():
    candidates = [Candidate("a", "", "one two three four"), Candidate("b", "Title", "five six seven")]
    found = dict(enlarge_collection.enlarge(candidates, 50))
    assert len(found) == 50 and found.pop("a") == "one two three four" and found.pop("b") == "Title five six seven"
    halves = {f"{first} {last}" for first in ("one two", "Title five") for last in ("three four", "six seven")}
    assert set(found.values()) == halves
    assert list(enlarge_collection.enlarge(candidates, 50)) == list(enlarge_collection.enlarge(candidates, 50))


def test_a_stage_is_killed_once_and_resumed(tmp_path):
    program = "import pathlib, sys, time; mark = pathlib.Path(sys.argv[1])\nif not mark.exists(): "
    program += "mark.touch(); time.sleep(60)"
    found = rehearsal.rehearse([sys.executable, "-c", program, str(tmp_path / "mark")], 1)
    assert 1 <= found["killed"] < 30 and found["resumed"] < 30 and found["peak_mib"] > 0
    with pytest.raises(UserError, match="ended with status 3"):
        rehearsal.rehearse([sys.executable, "-c", "raise SystemExit(3)"], 0)
