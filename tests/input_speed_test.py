"""What the benchmark of the input reports; not how fast anything is."""

import json

import pytest
from absl import flags
from conftest import REPOSITORY
from support import tiny

from benchmarks import input_speed
from retrieval.cli import command_line
from retrieval.errors import UserError
from retrieval.stage_outputs import Run


@pytest.fixture(scope="module")
def run(prepared):
    changes = tiny.CHEAP | {"data.lanes": 4}
    return Run(tiny.make_config(**changes), prepared, REPOSITORY / "requirements.lock")


class Clock:
    """Time goes on only while somebody works."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


def test_the_measures_of_a_run(run):
    result = input_speed.measure(run, trainer=True, rounds=2, seconds=0.05)
    assert list(result) == ["settings", "seconds_to_first_batch", "input", "trainer", "ratio", "training", "waiting"]
    assert result["settings"].items() >= dict(rows=16, lanes=4, query_length=16, document_length=48).items()
    for name in ("input", "trainer", "ratio", "training"):
        assert 0 < result[name]["lowest"] <= result[name]["median"] <= result[name]["highest"]
    assert 0 < result["waiting"]["median"] < 100
    json.dumps(result)


def test_speeds_and_waiting_by_a_made_up_clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(input_speed, "time", clock)
    batches = iter(lambda: clock.work(2), "never")
    measured = input_speed._round(batches, {}, lambda batch: clock.work(6), rows=24, seconds=100)
    assert measured == pytest.approx({"input": 12, "trainer": 4, "ratio": 3, "training": 3, "waiting": 25})


def test_what_was_left_in_the_buffers_is_not_counted(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(input_speed, "time", clock)
    calls = iter(range(10**6))
    # The first 50 batches lie ready, each of the others takes a second.
    batches = iter(lambda: clock.work(0 if next(calls) < 50 else 1), "never")
    assert input_speed._round(batches, {}, None, rows=8, seconds=10)["input"] == pytest.approx(8)


def test_a_folder_without_a_corpus(tmp_path):
    flags.FLAGS.unparse_flags()
    arguments = [f"--config={REPOSITORY}/configs/ict_bfs_wlp.py:local", f"--workdir={tmp_path}", "--notrainer"]
    with pytest.raises(UserError, match=r"has no corpus: python -m retrieval\.main --workdir=.* --stage=prepare first"):
        input_speed.main(command_line.parse_flags(["input_speed", *arguments]))
