"""Runs side by side: `retrieval compare`."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.command_flags import forget_flags
from support.tiny import make_config

from retrieval import LOCK, cli, compare
from retrieval.api.finished_run import FinishedRun
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.evaluation import per_query, significance
from retrieval.runs.pipeline import preflight, records
from retrieval.runs.pipeline.run import Run
from retrieval.studies import run_comparison
from retrieval.studies.study_results import Results

QUESTIONS = ["q1", "q2", "q3", "q4"]


def write_run(folder, dense, dataset="squad", questions=QUESTIONS, **changes):
    """A work directory with the results of two systems on four questions."""
    folder.mkdir()
    config = make_config("ict_bfs_wlp", **changes)
    (folder / "config.json").write_text(config.to_json())
    values = {"bm25": {"RR": np.full(4, 0.5)}, "dense": {"RR": np.array(dense)}}
    per_query.write(per_query.path_of(folder, dataset, "test"), questions, values)
    row = {"dataset": dataset, "split": "test", "metric": "RR", "queries": 4, "seconds": 1.0}
    steps = {"bm25": None, "dense": 3}
    rows = [row | {"system": name, "value": float(values[name]["RR"].mean()), "step": steps[name]} for name in steps]
    (folder / "results.json").write_text(json.dumps(rows))
    (folder / "metrics").mkdir()
    (folder / "metrics" / "train.jsonl").write_text(json.dumps({"step": 1, "loss": 1.0}) + "\n")
    return str(folder)


@pytest.fixture
def runs(tmp_path):
    values = {"a": [0.0, 0.5, 0.5, 0.0], "b": [1.0, 0.5, 1.0, 1.0]}
    return [write_run(tmp_path / name, of, **{"train.steps": 4 + 5 * (name == "b")}) for name, of in values.items()]


def test_differences_are_paired_by_question_and_corrected(runs, tmp_path):
    c = write_run(tmp_path / "c", [0.0, 0.0, 1.0, 0.0])
    metric, found = run_comparison.differences(run_comparison.read_runs([*runs, c]), [], "squad", "test")
    expected_RQ = np.array([[1.0, 0, 0.5, 1], [0, -0.5, 0.5, 0]])
    p_values = significance.holm([significance.randomisation(row_Q) for row_Q in expected_RQ])
    assert metric == "RR" and [each.systems for each in found] == [(f"dense of {name}", "dense of a") for name in "bc"]
    for (_, differences_Q, p_value), expected_Q, expected in zip(found, expected_RQ, p_values):
        assert differences_Q.tolist() == expected_Q.tolist() and p_value == expected


def test_the_command_shows_tables(runs, capsys):
    forget_flags()
    compare.main(cli.parse_flags(["compare", *runs, "--systems=dense,dense"]))
    text = capsys.readouterr().out
    assert "| a | bm25 |  | 4 | 50.00 |" in text and "| b | dense | 3 | 4 | **87.50** |" in text
    assert "| dense of b over dense of a | +62.50 | " in text and "| train.steps | 4 | 9 |" in text


@pytest.mark.parametrize("name", ["results.json", "per_query/squad/test.npz"])
def test_what_is_shown_is_what_was_written(runs, tmp_path, name):
    for folder in map(Path, runs):
        run = Run(preflight.read_config(folder), folder, LOCK)
        sums = files.checksums(folder, [path for path in folder.rglob("*") if path.is_file()])
        noted = {"metrics/train.jsonl": sums.pop("metrics/train.jsonl")}
        record = {"done": True, "outputs": sums, "noted": noted, "details": {}, "seconds": 1, "peak_memory_mb": 1}
        records.write_record(run, "evaluate", record)
    run_comparison.compare(runs)
    path = tmp_path / "b" / name
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    said = rf"b/{name}: damaged, .* --stage=evaluate makes it again"
    with pytest.raises(UserError, match=said):
        run_comparison.compare(runs)
    with pytest.raises(UserError, match=said):
        Results(tmp_path, ["b"]).of_run("b")
    if name == "results.json":
        with pytest.raises(UserError, match=said):
            FinishedRun(tmp_path / "b").results  # noqa: B018


def test_what_cannot_be_compared_is_refused(runs, tmp_path):
    other = write_run(tmp_path / "other", [0.0, 0, 0, 0], dataset="nq")
    for places, systems, said in (
        (runs[:1], [], "two or more different runs"),
        ([runs[0], f"{runs[1]}/../a"], [], "two or more different runs"),
        ([runs[0], other], [], r"share no evaluation set \(a: squad; other: nq\)"),
        (runs, ["dense", "colbert"], "system in b"),
    ):
        with pytest.raises(UserError, match=said):
            run_comparison.compare(places, systems)
    for changed in ('[{"system": "dense"}]', '["dense"]', "{}"):
        (tmp_path / "b" / "results.json").write_text(changed)
        with pytest.raises(UserError, match=r"b/results\.json: not a list of results"):
            run_comparison.compare(runs)
