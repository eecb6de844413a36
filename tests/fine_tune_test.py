"""`retrieval.fine_tune`: rows in memory to a model and its report."""

import datetime
import json
import re

import numpy as np
import pyarrow as pa
import pytest
from conftest import REPOSITORY
from support import exported

import retrieval
from retrieval.api import tuning
from retrieval.api.finished_run import FinishedRun
from retrieval.common.errors import UserError

ROWS = [{"query": f"fox {n}", "positive": f"the dog {n}"} for n in range(20)]


class Table:
    """What pandas has, as far as it is read."""

    columns = ("query", "positive", "negative")

    def to_dict(self, orient):
        assert orient == "records"
        return [{"query": "q", "positive": "p", "negative": float("nan")}]


@pytest.fixture
def program(monkeypatch):
    """The flags of every run of the program, which logs four steps, in place of running it."""
    runs = []

    def run_program(flags, workdir, on_line):
        runs.append(flags)
        (workdir / "metrics").mkdir(parents=True, exist_ok=True)
        (workdir / "checkpoints" / "2").mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"step": step, "loss": 1.0 / step}) for step in range(1, 5)]
        (workdir / "metrics" / "train.jsonl").write_text("\n".join(lines) + "\n")
        runs.append(on_line("12:00:00 INFO step 4: loss 0.25"))
        return FinishedRun(workdir)

    monkeypatch.setattr(tuning, "run_program", run_program)
    return runs


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ROWS, ROWS),
        (iter(ROWS[:2]), ROWS[:2]),
        (pa.Table.from_pylist(ROWS), ROWS),
        (Table(), [{"query": "q", "positive": "p"}]),
        ([{"query": "q", "positive": None, "scores": np.array([1.5])}], [{"query": "q", "scores": [1.5]}]),
        ([{"query": "q", "day": datetime.date(2026, 1, 2)}], [{"query": "q", "day": "2026-01-02"}]),
    ],
)
def test_rows_of_every_kind_become_lines(program, tmp_path, rows, expected):
    retrieval.fine_tune("hf:a/b", rows, ROWS[:1], tmp_path / "run", steps=4, quiet=True, **{"data.negatives": 1})
    folder = tmp_path / "run-rows"
    assert [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()] == expected
    assert program[0] == {
        "config": "embedding",
        "config.train.steps": 4,
        "config.data.negatives": 1,
        "config.train.init_from": "hf:a/b",
        "config.pairs.files": str(folder / "pairs.jsonl"),
        "config.sets.labelled": str(folder / "test.jsonl"),
    }


def test_a_callback_gets_every_line_and_ends_the_training(program, tmp_path):
    got = []
    retrieval.fine_tune("m", ROWS, workdir=tmp_path / "run", quiet=True, on_metrics=lambda *line: got.append(line))
    assert got == [(step, {"loss": 1.0 / step}) for step in range(1, 5)]
    program.clear()
    retrieval.fine_tune("m", ROWS, workdir=tmp_path / "run", quiet=True, on_metrics=lambda step, _: step < 2)
    (first, went_on, second, _) = program
    assert went_on is False and second == first | {"config.train.steps": 2}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "rows: there is no row"),
        ("pairs.jsonl", "rows: a list of dicts, a table or an iterator is needed, not str"),
        ([{"query": b"q"}], r"rows\[0\] cannot be written as JSON: b'q' is of type bytes"),
        ([("q", "p")], r"rows\[0\] is \('q', 'p'\): a dict like"),
    ],
)
def test_what_is_no_row_is_refused(program, tmp_path, rows, message):
    with pytest.raises(UserError, match=message):
        retrieval.fine_tune("m", rows, workdir=tmp_path / "run")
    with pytest.raises(UserError, match="name a folder of this machine"):
        retrieval.fine_tune("m", ROWS, workdir="gs://bucket/run")


@pytest.mark.long
def test_the_guides_lines_tune_a_model_and_the_callback_ends_a_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"retrieval": retrieval, "model_folder": exported.export(exported.work_directory(tmp_path / "base"))}
    page = (REPOSITORY / "docs" / "guides" / "python.md").read_text()
    (lines,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "fine_tune" in block]
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # of the program, which is another process
    exec(lines, names)
    tuned, seen = names["tuned"], []
    assert {row["system"] for row in tuned.results} >= {"dense", "start"} and "nDCG@10" in tuned.report
    options = {"config": "embedding:local", "batch_size": 8, "warmup_ratio": 0.0, "loop.log_every": 1, "steps": 40}
    options["on_metrics"] = lambda step, _: seen.append(step) or step < 2
    ended = retrieval.fine_tune(names["model_folder"], ROWS, ROWS[:5], tmp_path / "ended", **options)
    assert 2 <= max(seen) < 40 and ended.results
    assert tuned.model.encode_query(["fox"]).shape == ended.model.encode_query(["fox"]).shape
