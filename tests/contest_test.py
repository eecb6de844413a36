"""Systems that take turns: who is measured when, what the ratios say, and what happens to one that cannot run."""

import json
import os
import subprocess
import sys
import time

import pytest
from conftest import REPOSITORY

from benchmarks import contest
from benchmarks.contest import System, Target, Work
from retrieval.errors import UserError

# Every turn is a line of a file that the systems share; `seconds` are the answers, one a turn.
WORKER = """
import os
from pathlib import Path
from benchmarks import worker

def prepare(settings):
    if settings.get("needs"):
        __import__(settings["needs"])
    if settings.get("lacks"):
        raise worker.MissingError(settings["lacks"])
    for variable, value in settings.get("environment", {}).items():
        assert os.environ.get(variable) == value, variable
    assert os.environ.get("JAX_PLATFORMS", "") == settings.get("platforms", os.environ.get("JAX_PLATFORMS", ""))
    print("a library that talks")
    log, name = Path(settings["log"]), settings["name"]

    def turn():
        with log.open("a") as file:
            print(name, file=file)
        if "runs_out" in settings and log.read_text().splitlines().count(name) == 3:
            raise worker.MissingError(settings["runs_out"])
        print("another one")
        seconds = settings["seconds"]
        device = {"device": settings["device"]} if "device" in settings else {}
        return {"seconds": seconds[(log.read_text().splitlines().count(name) - 1) % len(seconds)], **device}

    return turn

worker.serve(prepare)
"""


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Makes systems of the worker above, for either interpreter."""
    for room in ("ours", "peers"):
        path = tmp_path / f"made_up_{room}.py"
        path.write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    monkeypatch.setattr(System, "is_peer", property(lambda self: self.module == "made_up_peers"))

    def make(name, room, seconds, **settings):
        return System(name, f"made_up_{room}", dict(name=name, log=str(tmp_path / "log"), seconds=seconds, **settings))

    make.turns = lambda: (tmp_path / "log").read_text().splitlines()
    return make


def test_turns_medians_and_the_best_of_ours(system):
    systems = (
        system("ours", "ours", [100, 1, 100, 2, 100, 4]),
        system("ours, small", "ours", [0, 2, 0, 8, 0, 8]),
        system("peer", "peers", [0, 4, 0, 2, 0, 5]),
    )
    targets = (Target("seconds", "peer", 1.0), Target("seconds", "peer", 0.5, at_most=True))
    result = contest.hold(Work("made up", systems, targets), 3, sys.executable)
    assert system.turns() == ["ours", "ours", "ours, small", "ours, small", "peer", "peer"] * 3
    assert result["systems"]["ours"]["seconds"] == {
        "median": 2,
        "lowest": 1,
        "highest": 4,
    }  # the first turn of a process is left out
    most, least = result["ratios"]
    assert (most["ours"], most["values"], most["reached"]) == ("ours, small", [8, 4], True)
    assert most["ratio"] == {"median": 1.6, "lowest": 0.5, "highest": 4}  # 2 / 4, 8 / 2 and 8 / 5
    assert (least["ours"], least["values"], least["reached"]) == ("ours", [2, 4], False)
    assert least["ratio"] == {"median": 0.8, "lowest": 0.25, "highest": 1}
    assert result["missing"] == {}
    json.dumps(result)


def test_a_missing_peer_is_named(system):
    systems = (
        system("ours", "ours", [0, 1]),
        system("gone", "peers", [0, 1], needs="no_such_peer"),
        system("peer", "peers", [0, 2]),
    )
    work = Work("made up", systems, (Target("seconds", "gone", 1.0), Target("seconds", "peer", 1.0)))
    result = contest.hold(work, 1, sys.executable)
    assert result["missing"] == {"gone": "No module named 'no_such_peer'"}
    assert [row["against"] for row in result["ratios"]] == ["peer"] and list(result["systems"]) == ["ours", "peer"]
    lines = contest.table([result])
    assert len(lines) == 4 and "| gone | left out: No module named 'no_such_peer' |" in lines[3]

    result = contest.hold(work, 1, None)
    assert result["missing"] == {"gone": "--alone", "peer": "--alone"} and result["ratios"] == []


def test_without_an_accelerator_its_works_are_left_out(system):
    ours = system("ours", "ours", [0, 1], lacks="no accelerator")
    full = system("ours, too large", "ours", [0, 1], runs_out="no memory")
    peer = system("peer", "peers", [0, 2])
    targets = (Target("seconds", "peer", 1.0),)
    result = contest.hold(Work("made up", (ours, peer), targets, accelerator=True), 1, sys.executable)
    assert result["missing"] == {"ours": "no accelerator"} and result["ratios"] == []
    assert "| ours | left out: no accelerator |" in contest.table([result])[-1]
    with pytest.raises(UserError, match="'ours' cannot run: no accelerator"):
        contest.hold(Work("made up", (ours, peer), targets), 1, sys.executable)

    # One that breaks off in the middle counts for nothing; the others of ours still do.
    ours = system("ours, small", "ours", [0, 1])
    result = contest.hold(Work("made up", (full, ours, peer), targets, accelerator=True), 2, sys.executable)
    assert result["missing"] == {"ours, too large": "no memory"} and "ours, too large" not in result["systems"]
    assert [row["ours"] for row in result["ratios"]] == ["ours, small"]


def test_a_system_that_breaks_ends_all_with_one_message(system, tmp_path):
    systems = (system("ours", "ours", [0, 1]), system("peer", "peers", []))
    with pytest.raises(UserError, match="'peer' ended with status 1; what it said is above"):
        contest.hold(Work("made up", systems, ()), 2, sys.executable)
    assert system.turns() == ["ours", "ours", "peer"]
    until = time.monotonic() + 5
    while (left := subprocess.run(["pgrep", "-f", str(tmp_path / "log")], capture_output=True).stdout) and (
        time.monotonic() < until
    ):
        time.sleep(0.05)
    assert not left  # nobody waits for a turn that does not come


def test_what_is_ours_may_not_be_missing(system):
    with pytest.raises(UserError, match="'ours' cannot run: No module named 'no_such_peer'"):
        contest.hold(Work("made up", (system("ours", "ours", [], needs="no_such_peer"),), ()), 1, None)


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false"])
def test_an_interpreter_that_is_none(python):
    with pytest.raises(UserError, match=rf"--peer_python={python}: not a Python that runs .*benchmarks/README\.md"):
        contest.check_python(python)
