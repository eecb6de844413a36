"""The stage `latency`: questions one at a time, for every system of a set."""

import json
import time

import pytest
from conftest import REPOSITORY
from support.tiny import CHEAP, execute, make_config, make_run

from retrieval.errors import UserError
from retrieval.search import scann
from retrieval.search.bm25 import Bm25Index
from retrieval.stage_outputs import Run
from retrieval.stages import latency

pytestmark = pytest.mark.usefixtures("one_device")

STAGES = ("prepare", "sets", "train", "encode", "index")


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    """A run with embeddings and an index of words of its set."""
    run = make_run(
        "ict_bfs_wlp", inputs, tmp_path_factory.mktemp("latency") / "run", **CHEAP | {"index.bm25_also": (0.9, 0.4)}
    )
    execute(run, *STAGES)
    return run


def test_every_system_of_a_set_has_its_time(trained, capsys):
    trained.config.latency.questions = 5
    execute(trained, "latency")
    rows = json.loads((trained.folder / "latency.json").read_text())
    assert [(row["system"], row["dataset"], row["questions"]) for row in rows] == [
        ("dense (ScaNN)" if scann.available() else "dense", "reqa", 5),
        ("bm25", "reqa", 5),
        ("bm25 (0.9, 0.4)", "reqa", 5),
        ("hybrid", "reqa", 5),
    ]
    assert all(0 < row["median"] <= row["p99"] and row["results"] <= trained.config.evaluate.depth for row in rows)
    assert "| hybrid | reqa |" in capsys.readouterr().out


def test_a_question_is_asked_alone_and_timed(trained, monkeypatch):
    asked = []
    search = Bm25Index.search

    def slow(self, queries, k):
        asked.append(len(queries))
        time.sleep(0.02)
        return search(self, queries, k)

    monkeypatch.setattr(Bm25Index, "search", slow)
    trained.config.latency.questions = 3
    execute(trained, "latency")
    _, words, _, _ = json.loads((trained.folder / "latency.json").read_text())
    assert set(asked) == {1} and words["median"] >= 20


def test_questions_are_spread_over_the_set():
    assert latency.spread(list("abcde"), 3) == ["a", "c", "e"]
    assert latency.spread(list("ab"), 3) == ["a", "b"]


def test_a_run_without_questions_is_refused(tmp_path):
    run = Run(make_config(), tmp_path / "run", REPOSITORY / "requirements.lock")
    with pytest.raises(UserError, match=r"has no evaluation set, so no questions: name one in config.sets"):
        latency.latency(run)
