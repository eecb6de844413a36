import os
import sys

import numpy as np
import pytest
from conftest import REPOSITORY

from benchmarks import contest
from benchmarks.contest import System, Target, Work
from benchmarks.peers import fine_tune as peer
from retrieval.common.errors import UserError
from retrieval.evaluation.metrics import per_query

"""What the benchmarks report, and that both sides do the same; not how fast anything is."""


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


def test_the_peers_ndcg_is_that_of_our_evaluation():
    grades, ids = {"a": 2, "b": 1, "c": 1, "e": 0}, ["a", "b", "c", "e", "x"]
    hits = ["b", "x", "a", "e"]
    ours = per_query(np.array([[ids.index(hit) for hit in hits]]), ["q"], ids, {"q": grades}, ["nDCG@10"])["nDCG@10"]
    theirs = peer.ndcg([grades.get(hit, 0) for hit in hits], list(grades.values()))
    assert theirs == pytest.approx(float(ours[0])) and 0 < theirs < 1
    assert peer.ndcg([0, 0], [0, 0]) == 0
